"""What the equations of the appendix should give, by torch: a net, and every quantity of its passes with R and R².

R is d/dr at w + r v. It is taken as autograd knows it, from two backward passes (the second one by the cotangent of the
first), so nothing of the appendix is used here but its names.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray
Jet = tuple[Array, Array, Array]  # a, R{a}, R²{a}

BIASES = ("none", "inside", "outside")


@dataclass(frozen=True)
class Net:
    """A fully connected net with tanh in every layer, one sample, a loss, and a direction.

    bias "inside": y = σ(x + b). "outside": y = σ(x) + I, as printed; "none": y = σ(x).
    """

    weights: list[Array]  # (from, to)
    biases: list[Array]  # (to,)
    v: list[Array]  # the direction's part for each weight, …
    c: list[Array]  # … and for each bias
    data: Array
    target: Array
    bias: str = "none"
    separable: bool = True

    @classmethod
    def drawn(cls, widths: tuple[int, ...], seed: int, bias: str, separable: bool) -> Net:
        """Random numbers of ordinary size; the target is a distribution over the outputs."""
        rng = np.random.default_rng(seed)
        shapes = list(itertools.pairwise(widths))
        weights, v = ([rng.standard_normal(shape) for shape in shapes] for _ in range(2))
        biases, c = ([rng.standard_normal(to) for _, to in shapes] for _ in range(2))
        return cls(
            weights, biases, v, c, rng.standard_normal(widths[0]), rng.dirichlet(np.ones(widths[-1])), bias, separable
        )

    def loss(self, y: Tensor) -> Tensor:
        """E(y)."""
        t = torch.tensor(self.target)
        if self.separable:
            return (torch.log1p(torch.exp(y)) - t * y).sum()
        return -(t * torch.log_softmax(y, 0)).sum()


def along(a: Tensor, r: Tensor) -> Tensor:
    """da/dr for a tensor a and a number r: ⟨a, u⟩ differentiated by r is linear in u, its slope is da/dr."""
    if not a.requires_grad:
        return torch.zeros_like(a)
    u = torch.zeros_like(a, requires_grad=True)
    (slope,) = torch.autograd.grad(a, r, u, create_graph=True, allow_unused=True)
    if slope is None or not slope.requires_grad:
        return torch.zeros_like(a)
    (result,) = torch.autograd.grad(slope, u, create_graph=True, allow_unused=True)
    return torch.zeros_like(a) if result is None else result


def jet(a: Tensor, r: Tensor) -> Jet:
    """a, R{a}, R²{a} as arrays."""
    first = along(a, r)
    values = [tensor.detach().numpy() for tensor in (a, first, along(first, r))]
    return values[0], values[1], values[2]


def jets(net: Net) -> dict[str, list[Jet]]:
    """The jets of all quantities, layer by layer: y (with the data as y[0]), x, dE_dy, dE_dx, dE_dw, dE_db.

    x[l], dE_dx[l], dE_dw[l] and dE_db[l] belong to the layer whose weights are weights[l]; its output is y[l + 1].
    """
    r = torch.zeros((), dtype=torch.float64, requires_grad=True)
    ws = [torch.tensor(w) + r * torch.tensor(v) for w, v in zip(net.weights, net.v, strict=True)]
    bs = [torch.tensor(b) + r * torch.tensor(c) for b, c in zip(net.biases, net.c, strict=True)]
    ys, xs = [torch.tensor(net.data).requires_grad_()], []
    for w, b in zip(ws, bs, strict=True):
        xs.append(ys[-1] @ w + (b if net.bias == "inside" else 0))
        ys.append(torch.tanh(xs[-1]) + (b if net.bias == "outside" else 0))
    values = {"x": xs, "y": ys}
    energy = net.loss(ys[-1])
    for name, tensors in {"dE_dx": xs, "dE_dy": ys, "dE_dw": ws, "dE_db": bs}.items():
        if name != "dE_db" or net.bias != "none":
            values[name] = list(torch.autograd.grad(energy, tensors, create_graph=True))
    return {name: [jet(tensor, r) for tensor in tensors] for name, tensors in values.items()}
