"""Appendix A against autograd: which equations are right as printed, which are not, and what is right instead."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd.functional import jacobian

import rop
from rop.check.reference import differentiate
from tests.appendix import equations
from tests.appendix.autograd import Net, jets
from tests.appendix.comparison import CORRECTED, PRINTED, Comparison, quantity_and_order, seeds

AGREES = 1e-12
DIFFERS = 0.1

# square layers, so that exchanged indices give numbers instead of errors; no bias, a loss that is a sum over outputs
PLAIN = Comparison(Net.drawn((4, 4, 4, 4), seed=0, bias="none", separable=True))
# what is used in practice: widths that differ, a bias inside σ, softmax with cross-entropy
USUAL = Comparison(Net.drawn((5, 4, 6, 3), seed=1, bias="inside", separable=False))
# as equation (2) has it
OUTSIDE = Comparison(Net.drawn((5, 4, 6, 3), seed=2, bias="outside", separable=True))

INDICES = ("dE_dy", "dE_dw", "R_dE_dy", "R_dE_dw", "R2_dE_dy", "R2_dE_dw")  # w_jk with j behind k
ALWAYS_RIGHT = ("dE_dx", "R_y", "R_dE_dx", "R2_y", "R2_dE_dx")
WITHOUT_BIAS = ("x", "y", "R_x")

hidden_and_last = pytest.mark.parametrize("layer", [1, 2], ids=["hidden", "last"])
every_net = pytest.mark.parametrize("comparison", [PLAIN, USUAL], ids=["plain", "usual"])


def transposed(arguments: dict) -> dict:
    return {name: arguments[name].T for name in ("w", "v") if name in arguments}


def test_every_equation_is_judged() -> None:
    assert {*INDICES, *ALWAYS_RIGHT, *WITHOUT_BIAS, "R2_x"} == set(PRINTED) and len(PRINTED) == 15
    assert set(CORRECTED) == {*INDICES, *WITHOUT_BIAS, "R2_x", "dE_db"}


@every_net
@hidden_and_last
@pytest.mark.parametrize("name", ALWAYS_RIGHT)
def test_right_as_printed(name: str, layer: int, comparison: Comparison) -> None:
    """(4), (7), (9), (12), (14): the chain rule through σ, with all factors and terms."""
    assert comparison.error(name, layer) < AGREES


@every_net
@hidden_and_last
@pytest.mark.parametrize("name", [name for name in CORRECTED if name != "dE_db"])
def test_right_as_corrected(name: str, layer: int, comparison: Comparison) -> None:
    """Every equation that was changed, in nets of both kinds."""
    assert comparison.error(name, layer, corrected=True) < AGREES


@hidden_and_last
@pytest.mark.parametrize("order", [0, 1, 2])
def test_the_bias_gradient_is_that_of_x_at_every_order(order: int, layer: int) -> None:
    """∂E/∂b, R{∂E/∂b} and R²{∂E/∂b}, which the appendix leaves out."""
    found = equations.dE_db_corrected(USUAL.truth["dE_dx"][layer][order])
    np.testing.assert_allclose(found, USUAL.truth["dE_db"][layer][order], rtol=AGREES)


# ---- indices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INDICES)
def test_backward_indices_are_wrong_as_printed(name: str) -> None:
    """(3), (5), (8), (10), (13), (15): w goes from j to k in (1), and from k to j in all of these."""
    assert PLAIN.error(name, layer=1) > DIFFERS


@pytest.mark.parametrize("name", INDICES)
def test_backward_indices_are_right_if_w_jk_goes_from_k_to_j(name: str) -> None:
    """The backward equations agree with each other: with wᵀ for w they are right. They contradict (1), (6), (11)."""
    quantity, _ = quantity_and_order(name)
    arguments = PLAIN.arguments(quantity, 1, full=False)
    if quantity == "dE_dy":
        assert PLAIN.error(name, 1, **transposed(arguments)) < AGREES
    else:
        found = PRINTED[name](**{key: arguments[key] for key in PRINTED[name].__annotations__ if key != "return"})
        np.testing.assert_allclose(found.T, PLAIN.truth[quantity][1][quantity_and_order(name)[1]], rtol=1e-10)


@pytest.mark.parametrize("name", ["x", "R_x"])
def test_forward_is_wrong_if_w_jk_goes_from_k_to_j(name: str) -> None:
    """So no single reading of w_jk makes the whole appendix right."""
    assert PLAIN.error(name, 1, **transposed(PLAIN.arguments("x", 1, full=False))) > DIFFERS


@hidden_and_last
def test_r2_x_cannot_be_evaluated_as_printed(layer: int) -> None:
    """(11) has w_ji, and no i on its left-hand side."""
    with pytest.raises(ValueError, match="'k'"):
        PLAIN.error("R2_x", layer)


# ---- the bias --------------------------------------------------------------------------------------------------------


@hidden_and_last
@pytest.mark.parametrize("name", WITHOUT_BIAS)
def test_forward_is_right_as_printed_without_a_bias(name: str, layer: int) -> None:
    assert PLAIN.error(name, layer) < AGREES


@hidden_and_last
@pytest.mark.parametrize("name", ["x", "R_x"])
def test_forward_lacks_the_bias_that_nets_have(name: str, layer: int) -> None:
    """(1) and (6): with b inside σ, R{x} gets the direction's part for b, too."""
    assert USUAL.error(name, layer) > DIFFERS


def test_i_is_right_as_an_input_that_is_not_trained() -> None:
    """(2), (7), (12) with I outside σ and constant: what I is in the equations that the appendix extends."""
    net = Net.drawn((5, 4, 6, 3), seed=2, bias="outside", separable=True)
    constant = Comparison(Net(**{**vars(net), "c": [0 * c for c in net.c]}))
    for name in ("y", "R_y", "R2_y"):
        assert constant.error(name, 1) < AGREES


def test_i_is_never_differentiated() -> None:
    """(7) with I as a parameter: R{y_k} = R{x_k} σ′(x_k) + c_k, where c is the direction's part for I."""
    assert OUTSIDE.error("y", 1) < AGREES
    assert OUTSIDE.error("R_y", 1) > DIFFERS
    found = equations.R_y(equations.tanh(OUTSIDE.truth["x"][1][0]), OUTSIDE.truth["x"][1][1]) + OUTSIDE.net.c[1]
    np.testing.assert_allclose(found, OUTSIDE.truth["y"][2][1], rtol=1e-12)


def test_a_bias_outside_sigma_is_another_net() -> None:
    """σ(x) + I and σ(x + b) with the same numbers: other outputs."""
    inside = Comparison(Net(**{**vars(OUTSIDE.net), "bias": "inside"}))
    outputs = [comparison.truth["y"][-1][0] for comparison in (inside, OUTSIDE)]
    assert np.linalg.norm(outputs[0] - outputs[1]) > DIFFERS * np.linalg.norm(outputs[0])


# ---- the loss --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separable", [True, False], ids=["separable", "coupled"])
def test_seeds_of_the_losses(separable: bool) -> None:
    """e, e′ and e″ of both losses against autograd's derivatives of E."""
    net = Net.drawn((4, 4), seed=3, bias="none", separable=separable)
    y = np.random.default_rng(4).standard_normal(4)
    found = seeds(net, y, full=True)

    def derivative(order: int, y: torch.Tensor) -> torch.Tensor:
        """All derivatives of E of an order, one more axis each time."""
        if order == 0:
            return net.loss(y)
        return jacobian(lambda y: derivative(order - 1, y), y, create_graph=True)

    for order, name in enumerate(("e", "e1", "e2"), start=1):
        expected = derivative(order, torch.tensor(y, requires_grad=True)).detach().numpy()
        np.testing.assert_allclose(found[name], expected, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("name", ["R_dE_dy", "R2_dE_dy"])
def test_elementwise_seeds_are_right_for_a_separable_loss(name: str) -> None:
    """(8) and (13) in the last layer, where the sum over j is empty."""
    assert PLAIN.error(name, layer=2) < AGREES


@pytest.mark.parametrize("name", ["R_dE_dy", "R2_dE_dy"])
def test_elementwise_seeds_are_wrong_for_softmax_with_cross_entropy(name: str) -> None:
    """e_k depends on all outputs: the diagonal of ∂e/∂y is not enough."""
    assert USUAL.error(name, layer=2) > DIFFERS


def test_the_seed_of_order_zero_is_right_for_any_loss() -> None:
    assert USUAL.error("dE_dy", layer=2) < AGREES


# ---- the whole recursion ---------------------------------------------------------------------------------------------


def recursion(net: Net) -> list[list[np.ndarray]]:
    """∂E/∂w and ∂E/∂b of every layer at orders 0, 1, 2 by the corrected equations, one after the other."""
    q = equations
    y, R_y, R2_y = net.data, 0 * net.data, 0 * net.data
    kept = []
    for w, b, v, c in zip(net.weights, net.biases, net.v, net.c, strict=True):
        before = y, R_y, R2_y
        x, R_x = q.x_corrected(w, b, y), q.R_x_corrected(w, v, c, y, R_y)
        R2_x, s = q.R2_x_corrected(w, v, R_y, R2_y), q.tanh(x)
        y, R_y, R2_y = q.y_corrected(s), q.R_y(s, R_x), q.R2_y(s, R_x, R2_x)
        kept.append((before, s, R_x, R2_x))
    e, e1, e2 = q.coupled_seeds(y, net.target)
    d, R_d, R2_d = e, e1 @ R_y, np.einsum("klm,l,m->k", e2, R_y, R_y) + e1 @ R2_y
    orders: list[list[np.ndarray]] = [[], [], []]
    for (before, s, R_x, R2_x), w, v in zip(reversed(kept), reversed(net.weights), reversed(net.v), strict=True):
        g, R_g, R2_g = q.dE_dx(s, d), q.R_dE_dx(s, R_x, d, R_d), q.R2_dE_dx(s, R_x, R2_x, d, R_d, R2_d)
        y, R_y, R2_y = before
        gradients = (
            q.dE_dw_corrected(y, g),
            q.R_dE_dw_corrected(y, R_y, g, R_g),
            q.R2_dE_dw_corrected(y, R_y, R2_y, g, R_g, R2_g),
        )
        for order, (gradient, of_x) in enumerate(zip(gradients, (g, R_g, R2_g), strict=True)):
            orders[order][:0] = [gradient, q.dE_db_corrected(of_x)]
        e, e1, e2 = (np.zeros((len(w),) * axes) for axes in (1, 2, 3))  # only the last layer meets the loss
        d, R_d, R2_d = (
            q.dE_dy_corrected(e, w, g),
            q.R_dE_dy_corrected(e1, R_y, w, v, g, R_g),
            q.R2_dE_dy_corrected(e1, e2, R_y, R2_y, w, v, R_g, R2_g),
        )
    return orders


def as_torch_nn(arrays: list[np.ndarray]) -> np.ndarray:
    """Weights (from, to) and biases as one vector in the order of torch.nn and rop, weights (to, from)."""
    return np.concatenate([array.T.ravel() for array in arrays])


def whole() -> tuple[Net, np.ndarray, np.ndarray, list[np.ndarray]]:
    """A net, its w and v as vectors, and ∇f, Hv, vᵀ∇Hv by the corrected recursion."""
    net = Net.drawn((5, 4, 6, 3), seed=5, bias="inside", separable=False)
    w, v = (
        as_torch_nn([array for pair in zip(*parts, strict=True) for array in pair])
        for parts in ((net.weights, net.biases), (net.v, net.c))
    )
    return net, w, v, [as_torch_nn(order) for order in recursion(net)]


def test_the_corrected_recursion_gives_gradient_hv_and_r2() -> None:
    """R{∇f} = Hv and R²{∇f} = vᵀ∇Hv, as section 3.2.1 has it, against double and triple backward."""
    net, w, v, found = whole()

    def loss(flat: torch.Tensor) -> torch.Tensor:
        y, start = torch.tensor(net.data), 0
        for weight, bias in zip(net.weights, net.biases, strict=True):
            matrix = flat[start : start + weight.size].view(weight.shape[::-1])
            start += weight.size + bias.size
            y = torch.tanh(matrix @ y + flat[start - bias.size : start])
        return net.loss(y)

    for ours, theirs in zip(found, differentiate(loss, torch.tensor(w), torch.tensor(v))[1:], strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-10, atol=1e-12)


def test_rop_computes_the_corrected_recursion() -> None:
    net, w, v, found = whole()
    layers = [layer for weight in net.weights for layer in (rop.Linear(*weight.shape), rop.Tanh())]
    f = rop.Objective(rop.Sequential(*layers), rop.CrossEntropy(), net.data[None], net.target[None], dtype=np.float64)
    for ours, theirs in zip(f.jet(w, v)[1:], found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_autograd_along_r_agrees_with_finite_differences() -> None:
    """The second opinion itself: R and R² of all quantities from differences of the order below."""
    net, step = USUAL.net, 1e-5

    def moved(sign: int) -> dict:
        shifted = {"weights": (net.weights, net.v), "biases": (net.biases, net.c)}
        parts = {key: [a + sign * step * b for a, b in zip(*pair, strict=True)] for key, pair in shifted.items()}
        return jets(Net(**{**vars(net), **parts}))

    ahead, behind = moved(1), moved(-1)
    for name, layers in USUAL.truth.items():
        for layer, values in enumerate(layers):
            for order in (1, 2):
                slope = (ahead[name][layer][order - 1] - behind[name][layer][order - 1]) / (2 * step)
                scale = 1 + np.abs(values[order]).max()
                np.testing.assert_allclose(slope, values[order], atol=1e-8 * scale, err_msg=f"{name}[{layer}]")
