"""The training methods of the paper's tables, as optimizers and penalties, in the variants of spec.VARIANTS.

What the published code does differently from the paper is an option with a name each:

    order="fixed", partial_batch=True        forest's samples are never shuffled, and the last, partial batch is used
    stop="published"                         power iteration also stops when the residual hardly changes any more
    start_vector="constant"                  it starts from the vector of equal components
    signed=False                             ∇ρ lacks the factor sign(λ)
    limit=None                               a step along ∇ρ may have any length
    EntropySGD(steps=0)                      entropy-SGD without inner steps, which is SGD with Nesterov momentum
    select=True, no SWA                      the average of the asymmetric valley's iterates is never used

"corrected" uses none of them, and "plain" is "corrected" on the net with untied layers and logits as outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rop import optim
from rop.optim import Optimizer, Penalty, SpectralRadius

__all__ = ["PUBLISHED_ORDER", "Method", "entropy_sgd", "lobpcg", "method_of", "penalty", "valley_optimizer"]

UNREGULARISED, VALLEY, ENTROPY, KFAC, LOBPCG = "unregularised", "asymmetric valley", "entropy-SGD", "K-FAC", "LOBPCG"
PUBLISHED_ORDER = {"order": "fixed", "partial_batch": True}
INNER_STEPS = 20


def penalty(variant: str, mu: float, K: float, **options: Any) -> SpectralRadius:
    """The penalty μ·max(0, ρ − K) as the published code computes it, or as the paper's Algorithm 1 says, with ρ = |λ|,
    ∇ρ = sign(λ) vᵀ∇Hv and rop's limit on a step along ∇ρ.

    >>> penalty("corrected", 0.01, 1).limit, penalty("published", 0.01, 1).limit
    (0.5, None)
    """
    if variant == "published":
        options = {
            "stop": "published",
            "start_vector": "constant",
            "signed": False,
            "limit": None,
            "maxiter": 1000,
            **options,
        }
    return SpectralRadius(mu=mu, K=K, **options)


def lobpcg(variant: str, mu: float, K: float) -> SpectralRadius:
    """The same penalty, with ρ by the paper's Algorithm 2.

    >>> lobpcg("corrected", 0.0028, 1).solver
    'paper_lobpcg'
    """
    return penalty(variant, mu, K, solver="paper_lobpcg", maxiter=100, refresh=4)


def entropy_sgd(variant: str, epochs: int) -> tuple[Optimizer, int]:
    """Entropy-SGD with the paper's rate and momentum, and its number of epochs, where other methods have ``epochs``.

    As published it has no inner steps. With 20 of them, 100 epochs become 5, the same number of gradients, as in the
    paper of entropy-SGD.

    >>> [entropy_sgd(variant, 100)[1] for variant in ("published", "corrected")]
    [100, 5]
    """
    steps = 0 if variant == "published" else INNER_STEPS
    made = optim.EntropySGD(lr=0.1, momentum=0.9, nesterov=True, steps=steps)
    return made, max(1, round(epochs / max(1, steps)))


def valley_optimizer(variant: str, epochs: int) -> tuple[Optimizer, int]:
    """The asymmetric-valley method and its number of epochs, where other methods have ``epochs``: for their 100 it runs
    250, of which it averages the iterates after epochs 161 to 200. Its rate is 0.5 for half of 161 epochs, falls to
    0.05 at nine tenths of them, and is 0.5 again after the last average.

    As published the average is not used, and the best iterate of all epochs is reported. Else the average is the
    result, and the epochs after the last averaged one are left out, since they change nothing.

    >>> valley_optimizer("published", 100)[1]
    250
    """
    first, last, all_epochs = (max(1, round(share * epochs)) for share in (1.61, 2.0, 2.5))
    points = ((first / 2, 0.5), (0.9 * first, 0.05), (float(last), 0.05), (last + 1.0, 0.5))
    base = optim.SGD(lr=optim.piecewise_linear(points))
    if variant == "published":
        return base, all_epochs
    return optim.SWA(base=base, first=first, last=last), last


@dataclass(frozen=True)
class Method:
    """What distinguishes a row of a table from the others: arguments of ``Recipe``."""

    optimizer: Optimizer
    regularizer: Penalty | None
    epochs: int
    select: bool


def method_of(
    model: str, variant: str, epochs: int, usual: Optimizer, penalties: Mapping[str, tuple[float, float]]
) -> Method:
    """The method of a row, where the unregularised model is trained by the ``usual`` optimizer for so many epochs.
    ``penalties`` are μ and K of the rows that have them, LOBPCG among them.

    >>> method_of("mu=0.01 K=1", "corrected", 100, optim.SGD(), {"mu=0.01 K=1": (0.01, 1.0)}).regularizer.K
    1.0
    >>> method_of("asymmetric valley", "corrected", 100, optim.SGD(), {}).select
    False
    """
    if model in penalties:
        make = lobpcg if model == LOBPCG else penalty
        return Method(usual, make(variant, *penalties[model]), epochs, select=True)
    if model == ENTROPY:
        optimizer, inner_epochs = entropy_sgd(variant, epochs)
        return Method(optimizer, None, inner_epochs, select=True)
    if model == VALLEY:
        optimizer, all_epochs = valley_optimizer(variant, epochs)
        return Method(optimizer, None, all_epochs, select=variant == "published")
    return Method(optim.KFAC(lr=1e-3, momentum=0.9) if model == KFAC else usual, None, epochs, select=True)
