"""Classes of layers and losses: what constructors refuse, exports, immutability and scalar functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rop import layers
from rop.errors import ArgumentError, ArgumentTypeError, RopError
from rop.layers import (
    GELU,
    LAYERS,
    LOSSES,
    MSE,
    NLL,
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    BCEWithLogits,
    Conv2d,
    CrossEntropy,
    Elementwise,
    Flatten,
    LeakyReLU,
    Linear,
    LogSoftmax,
    MaxPool2d,
    ReLU,
    Softmax,
    Softplus,
)


def _undefined(x: float) -> Any:
    return x, x, x, missing  # type: ignore[name-defined]  # noqa: F821


# ---- what constructors refuse ----------------------------------------------------------------------------------------


REFUSED: dict[type, list[tuple[tuple[Any, ...], str]]] = {
    Linear: [
        ((0, 1), "in_features"),
        ((3, -1), "out_features"),
        ((2.0, 1), "in_features"),
        ((True, 1), "in_features"),
        (("3", 1), "in_features"),
        ((2**40, 1), "in_features"),
        ((3, 1, 1), "bias"),
        ((3, 1, None), "bias"),
    ],
    Conv2d: [
        ((0, 1, 3), "in_channels"),
        ((1, 0, 3), "out_channels"),
        ((1, 1, 0), "kernel_size"),
        ((1, 1, (3, 0)), "kernel_size"),
        ((1, 1, (3, 3, 3)), "kernel_size"),
        ((1, 1, 3.0), "kernel_size"),
        ((1, 1, 3, 0), "stride"),
        ((1, 1, 3, 1, -1), "padding"),
        ((1, 1, 3, 1, "full"), "padding"),
        ((1, 1, 3, 2, "same"), "stride 1"),
        ((1, 1, 4, 1, "same"), "odd kernel"),
        ((1, 1, 3, 1, 0, 0), "dilation"),
        ((4, 6, 3, 1, 0, 1, 3), "groups must divide in_channels"),
        ((6, 4, 3, 1, 0, 1, 3), "groups must divide out_channels"),
        ((1, 1, 3, 1, 0, 1, 0), "groups"),
        ((1, 1, 3, 1, 0, 1, 1, "yes"), "bias"),
    ],
    MaxPool2d: [
        ((0,), "kernel_size"),
        ((2, 0), "stride"),
        ((2, 2, -1), "padding"),
        ((2, 2, 2), "half of kernel_size"),
        (((4, 2), 2, (1, 2)), "half of kernel_size"),
    ],
    AvgPool2d: [((-2,), "kernel_size"), ((2, (1, 0)), "stride"), ((3, 2, 2), "half of kernel_size")],
    AdaptiveAvgPool2d: [((0,), "output_size"), (((1, -2),), "output_size"), ((None,), "output_size")],
    Flatten: [((0,), "start_dim"), ((1, 2), "end_dim"), ((True,), "start_dim")],
    LeakyReLU: [
        ((float("nan"),), "negative_slope"),
        ((float("inf"),), "negative_slope"),
        (("a",), "negative_slope"),
        ((1j,), "negative_slope"),
    ],
    Softplus: [((0,), "beta"), ((-1.0,), "beta"), ((1.0, float("inf")), "threshold"), ((1.0, None), "threshold")],
    GELU: [(("exact",), "approximate"), ((None,), "approximate")],
    Elementwise: [
        ((1.0,), "function"),
        ((abs,), "function"),
        ((lambda x: x,), "four numbers"),
        ((lambda: 0,), "takes"),
        ((lambda x: (x, x, x, x), 1.0), "takes"),
        ((lambda x: (x, x, x, "x"),), "four numbers"),
        ((lambda x, a: (x, x, x, x), "a"), "parameter 1"),
        ((_undefined,), "missing"),
    ],
    Softmax: [((0,), "dim"), ((2,), "dim"), ((1.0,), "dim")],
    LogSoftmax: [((0,), "dim"), ((True,), "dim")],
    BatchNorm1d: [
        ((0,), "num_features"),
        ((3, 0.0), "eps"),
        ((3, -1e-5), "eps"),
        ((3, 1e-5, 1.5), "momentum"),
        ((3, 1e-5, None), "momentum"),
        ((3, 1e-5, 0.1, 1), "affine"),
    ],
    BatchNorm2d: [((2.5,), "num_features"), ((3, float("nan")), "eps")],
    CrossEntropy: [
        (([[1.0, 2.0]],), "weight"),
        ((["a", "b"],), "weight"),
        (([1.0, -1.0],), "weight"),
        (([1.0, float("nan")],), "weight"),
        (([[1.0], [1.0, 2.0]],), "weight"),
        (([],), "weight"),
        ((1.0,), "weight"),
        ((None, "none"), "reduction"),
        ((None, "mean", 1.5), "label_smoothing"),
        ((None, "mean", -0.1), "label_smoothing"),
        ((None, "mean", 0.0, 0.5), "ignore_index"),
    ],
    NLL: [
        ((np.ones((2, 2)),), "weight"),
        (([True],), "weight"),
        ((None, "batchmean"), "reduction"),
        ((None, "mean", None), "ignore_index"),
    ],
    MSE: [(("none",), "reduction"), ((None,), "reduction")],
    BCEWithLogits: [
        (("average",), "reduction"),
        (("mean", [1.0, -1.0]), "pos_weight"),
        (("mean", float("nan")), "pos_weight"),
        (("mean", "heavy"), "pos_weight"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "arguments", "word"), [(kind, *case) for kind, cases in REFUSED.items() for case in cases]
)
def test_constructors_refuse(kind: type, arguments: tuple[object, ...], word: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
        kind(*arguments)
    assert str(caught.value).startswith(f"{kind.__name__}: ")
    assert word in str(caught.value)


def test_numpy_integers_and_pairs_are_accepted() -> None:
    layer = Conv2d(np.int64(2), 4, [3, 1], stride=np.int32(2), padding=(1, 0))  # type: ignore[arg-type]
    assert (layer.in_channels, layer.kernel_size, layer.stride, layer.padding) == (2, (3, 1), (2, 2), (1, 0))
    assert type(layer.in_channels) is int
    assert MaxPool2d((2, 3)).stride == (2, 3)


def test_errors_are_also_the_builtin_ones() -> None:
    with pytest.raises(ValueError, match="kernel_size"):
        MaxPool2d(0)
    with pytest.raises(TypeError, match="kernel_size"):
        MaxPool2d(1.5)  # type: ignore[arg-type]
    assert issubclass(ArgumentError, RopError) and issubclass(ArgumentTypeError, RopError)


# ---- registry and immutability ---------------------------------------------------------------------------------------


def test_every_layer_and_loss_is_exported() -> None:
    assert set(LAYERS) | set(LOSSES) <= set(layers.__all__)
    assert all(getattr(layers, name) is kind for name, kind in (LAYERS | LOSSES).items())
    public = {
        name for name in layers.__all__ if isinstance(getattr(layers, name), type) and name not in ("Layer", "Loss")
    }
    assert public == set(LAYERS) | set(LOSSES)


@pytest.mark.parametrize("thing", [Linear(2, 3), ReLU(), Softplus(), CrossEntropy([1.0, 2.0])], ids=repr)
def test_layers_and_losses_cannot_be_changed(thing: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="cannot be changed"):
        thing.reduction = "sum"
    with pytest.raises(ArgumentTypeError, match="cannot be changed"):
        del thing.reduction


def test_class_weights_are_a_copy() -> None:
    given = np.ones(2)
    loss = CrossEntropy(given)
    given[0] = 5
    assert loss.weight is not None and loss.weight.tolist() == [1, 1]
    with pytest.raises(ValueError, match="read-only"):
        loss.weight[0] = 5


# ---- scalar functions ------------------------------------------------------------------------------------------------


ACTIVATION_CASES = [*(kind() for kind in layers.ACTIVATIONS.values()), GELU("tanh"), Softplus(2.5, 3.0)]


@pytest.mark.parametrize("layer", ACTIVATION_CASES, ids=repr)
def test_each_derivative_is_the_derivative_of_the_one_before(layer) -> None:
    step = 1e-5
    for x in (-6.0, -2.3, -0.4, 0.1, 0.7, 1.1, 1.9, 5.0):  # none of them a seam of a function made of pieces
        ahead = layer.function(x + step, *layer.parameters)
        behind = layer.function(x - step, *layer.parameters)
        at = layer.function(x, *layer.parameters)
        for k in range(3):
            assert (ahead[k] - behind[k]) / (2 * step) == pytest.approx(at[k + 1], abs=2e-9, rel=1e-8)


@pytest.mark.parametrize("layer", ACTIVATION_CASES, ids=repr)
def test_scalar_functions_are_finite_far_out_and_honest_about_nan(layer) -> None:
    for x in (-1e4, -750.0, 750.0, 1e4):
        value, *derivatives = layer.function(x, *layer.parameters)
        assert np.isfinite([value, *derivatives]).all()
        assert np.allclose(derivatives[1:], 0, atol=2 / abs(x) ** 3)  # 2/x³ is the curvature of Softsign
    assert np.isnan(layer.function(float("nan"), *layer.parameters)).any()
