"""PyTorch's third derivatives of fused layers, against finite differences and against rop.

    python examples/torch_batchnorm_third_order.py

Triple backward through `F.batch_norm(..., training=True)` gives a wrong vᵀ∇H·v on torch 2.13, without a word; ∇f and
H·v are right. The fused double-backward takes the batch's mean and 1/standard deviation as saved numbers that do not
depend on the input. Its formula accounts for that dependence by hand, but the next derivative goes through the formula,
and there they are constants. The same layer in primitives is right. `F.layer_norm` and `F.instance_norm` fail in the
same way, `F.group_norm` does not. torch 2.14.1 refuses a third derivative of batchnorm and instance norm; layer norm is
as it was. See https://github.com/pytorch/pytorch/issues/186256.

`F.gelu(x, approximate="tanh")` is NaN at third order once cosh overflows in its double-backward: |x| > 13.04 in
float32, |x| > 26.84 in float64.

How to read the first table. f(w) = mean (tanh(normalised(X Wᵀ)·γ + β) − target)², w = (W, γ, β), float64. An error is
‖found − expected‖ / ‖expected‖, where expected is the central difference along v of the order below: of ∇f for H·v, of
H·v for vᵀ∇H·v. Lower orders of all engines agree, so every row could be its own judge. Differences are good to about
1e-8; the last column compares with rop to rounding. (Instance norm of two channels of four pixels is group norm of
eight features in two groups; rop computes it as that.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import rop
from rop.layers import Layer
from rop.layers.elementwise import gelu_tanh

try:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
except ModuleNotFoundError as error:
    raise SystemExit("this example compares with PyTorch: pip install 'rop[torch]'") from error

BATCH, INPUTS, OUTPUTS, GROUPS, EPS = 12, 3, 8, 2, 1e-5
STEP = 1e-5
RIGHT = 1e-6  # far above the error of a central difference, far below that of torch's fused layers

Function = Callable[[Tensor], Tensor]


# ---- the problem -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """Data, a point and a direction."""

    x: Tensor  # (BATCH, INPUTS)
    target: Tensor  # (BATCH, OUTPUTS)
    w: Tensor
    v: Tensor

    @classmethod
    def drawn(cls, seed: int = 0) -> Problem:
        rng = np.random.default_rng(seed)
        size = INPUTS * OUTPUTS + 2 * OUTPUTS
        shapes = (BATCH, INPUTS), (BATCH, OUTPUTS), (size,), (size,)
        return cls(*(torch.tensor(rng.standard_normal(shape)) for shape in shapes))

    def loss(self, normalise: Function) -> Function:
        """f as a function of w alone."""

        def f(w: Tensor) -> Tensor:
            weight, gamma, beta = w.split((INPUTS * OUTPUTS, OUTPUTS, OUTPUTS))
            h = normalise(self.x @ weight.view(OUTPUTS, INPUTS).T)
            return F.mse_loss(torch.tanh(h * gamma + beta), self.target)

        return f

    def rop_jet(self, name: str) -> rop.Jet:
        """loss, ∇f, H·v and vᵀ∇H·v of the net with a normalisation, by rop."""
        net = rop.Sequential(rop.Linear(INPUTS, OUTPUTS, bias=False), IN_ROP[name](), rop.Tanh())
        f = rop.Objective(net, rop.MSE(), self.x.numpy(), self.target.numpy(), dtype=np.float64, training=True)
        return f.jet(self.w.numpy(), self.v.numpy())


def standardised(x: Tensor, axis: int) -> Tensor:
    """(x − mean) / √(variance + ε) along an axis, in primitives."""
    centred = x - x.mean(axis, keepdim=True)
    return centred * ((centred**2).mean(axis, keepdim=True) + EPS) ** -0.5


def grouped(x: Tensor) -> Tensor:
    return x.view(BATCH, GROUPS, OUTPUTS // GROUPS)


NORMALISATIONS: dict[str, tuple[Function, Function]] = {  # name: fused, primitives
    "batch norm": (
        lambda h: F.batch_norm(h, None, None, training=True, eps=EPS),
        lambda h: standardised(h, 0),
    ),
    "layer norm": (
        lambda h: F.layer_norm(h, (OUTPUTS,), eps=EPS),
        lambda h: standardised(h, 1),
    ),
    "instance norm": (
        lambda h: F.instance_norm(grouped(h), eps=EPS).flatten(1),
        lambda h: standardised(grouped(h), 2).flatten(1),
    ),
    "group norm": (
        lambda h: F.group_norm(h, GROUPS, eps=EPS),
        lambda h: standardised(grouped(h), 2).flatten(1),
    ),
}


IN_ROP: dict[str, Callable[[], Layer]] = {
    "batch norm": lambda: rop.BatchNorm1d(OUTPUTS, eps=EPS),
    "layer norm": lambda: rop.LayerNorm(OUTPUTS, eps=EPS),
    "instance norm": lambda: rop.GroupNorm(GROUPS, OUTPUTS, eps=EPS),
    "group norm": lambda: rop.GroupNorm(GROUPS, OUTPUTS, eps=EPS),
}


# ---- derivatives -----------------------------------------------------------------------------------------------------


def first_two(f: Function, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """∇f and H·v by double backward, and the point they belong to; they can be differentiated once more."""
    w = w.detach().clone().requires_grad_()
    (grad,) = torch.autograd.grad(f(w), w, create_graph=True)
    (hvp,) = torch.autograd.grad(grad @ v, w, create_graph=True)
    return grad, hvp, w


def third(hvp: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """vᵀ∇H·v by one more backward."""
    return torch.autograd.grad(hvp @ v, w)[0]


def central(f: Function, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """H·v and vᵀ∇H·v as central differences along v of ∇f and H·v."""
    ahead, behind = first_two(f, w + STEP * v, v), first_two(f, w - STEP * v, v)
    hvp, r2 = ((a - b).detach() / (2 * STEP) for a, b in zip(ahead[:2], behind[:2], strict=True))
    return hvp, r2


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@dataclass(frozen=True)
class Outcome:
    """How far H·v and vᵀ∇H·v are off. `refusal` is torch's message if it gives no third derivative."""

    hvp: float
    r2: float = math.nan
    beside_rop: float = math.nan
    refusal: str = ""

    @property
    def verdict(self) -> str:
        if self.refusal:
            return f"refused: {self.refusal}"
        return "right" if self.r2 < RIGHT else "WRONG"


def outcome(name: str, fused: bool, problem: Problem) -> Outcome:
    """Triple backward through a normalisation."""
    f = problem.loss(NORMALISATIONS[name][0 if fused else 1])
    _, hvp, w = first_two(f, problem.w, problem.v)
    expected_hvp, expected = central(f, problem.w, problem.v)
    error = relative(hvp.detach(), expected_hvp)
    try:
        found = third(hvp, w, problem.v)
    except RuntimeError as refusal:
        return Outcome(error, refusal=str(refusal).splitlines()[0])
    beside_rop = relative(found, torch.tensor(problem.rop_jet(name).r2))
    return Outcome(error, relative(found, expected), beside_rop)


def rop_outcome(name: str, problem: Problem) -> Outcome:
    """rop's normalisation against the same differences, those of torch's primitives."""
    hvp, r2 = central(problem.loss(NORMALISATIONS[name][1]), problem.w, problem.v)
    jet = problem.rop_jet(name)
    return Outcome(relative(torch.tensor(jet.hvp), hvp), relative(torch.tensor(jet.r2), r2))


def third_of_gelu(x: float, dtype: torch.dtype, fused: bool) -> float:
    """d³/dx³ of GELU's tanh approximation at x, by triple backward."""
    point = torch.tensor(x, dtype=dtype, requires_grad=True)
    if fused:
        y = F.gelu(point, approximate="tanh")
    else:
        y = 0.5 * point * (1 + torch.tanh(math.sqrt(2 / math.pi) * (point + 0.044715 * point**3)))
    for _ in range(3):
        (y,) = torch.autograd.grad(y, point, create_graph=True)
    return float(y.detach())


# ---- tables ----------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1e}"


def show_normalisations(problem: Problem) -> None:
    print(f"{'relative errors, float64':28}{'computed by':18}{'H·v':>8}{'vᵀ∇H·v':>11}{'beside rop':>13}   vᵀ∇H·v is")
    for name in NORMALISATIONS:
        rows = {
            "torch, fused": outcome(name, True, problem),
            "torch, primitives": outcome(name, False, problem),
            "rop": rop_outcome(name, problem),
        }
        for row, (engine, found) in enumerate(rows.items()):
            print(
                f"{'' if row else name:28}{engine:18}{number(found.hvp):>8}{number(found.r2):>11}"
                f"{number(found.beside_rop):>13}   {found.verdict}"
            )


def show_gelu() -> None:
    print(f"{'GELU (tanh), d³y/dx³ at x':28}{'torch float32':>15}{'torch float64':>15}{'primitives':>15}{'rop':>15}")
    for x in (1.0, 5.0, 13.0, 13.1, 26.8, 26.9, 100.0):
        values = (
            third_of_gelu(x, torch.float32, True),
            third_of_gelu(x, torch.float64, True),
            third_of_gelu(x, torch.float64, False),
            gelu_tanh(x)[3],
        )
        print(f"{x:<28g}" + "".join(f"{value:15.3e}" for value in values))


def main() -> None:
    print(f"torch {torch.__version__}, rop {rop.__version__}\n")
    show_normalisations(Problem.drawn())
    print()
    show_gelu()


if __name__ == "__main__":
    main()
