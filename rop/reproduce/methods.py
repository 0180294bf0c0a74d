"""The training methods of the paper's tables, as optimizers and penalties, in the variants of spec.VARIANTS.

What the published code does differently from the paper is an option with a name each:

    order="fixed", partial_batch=True        forest's samples are never shuffled, and the last, partial batch is used
    stop="published"                         power iteration also stops when the residual hardly changes any more
    start="constant"                         it starts from the vector of equal components
    signed=False                             ∇ρ lacks the factor sign(λ)
    limit=None                               a step along ∇ρ may have any length
    EntropySGD(steps=0)                      entropy-SGD without inner steps, which is SGD with Nesterov momentum
    select=True, no SWA                      the average of the asymmetric valley's iterates is never used

"corrected" uses none of them, and "plain" is "corrected" on the net with untied layers and logits as outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rop import optim
from rop.optim import Optimizer, SpectralRadius

__all__ = ["PUBLISHED_ORDER", "entropy_sgd", "penalty", "valley", "valley_optimizer"]

PUBLISHED_ORDER = {"order": "fixed", "partial_batch": True}


def penalty(variant: str, mu: float, K: float, **options: Any) -> SpectralRadius:
    """The penalty μ·max(0, ρ − K) as the published code computes it, or as the paper's Algorithm 1 says, with ρ = |λ|,
    ∇ρ = sign(λ) vᵀ∇Hv and rop's limit on a step along ∇ρ.

    >>> penalty("corrected", 0.01, 1).limit, penalty("published", 0.01, 1).limit
    (0.5, None)
    """
    if variant == "published":
        options = {"stop": "published", "start": "constant", "signed": False, "limit": None, "maxiter": 1000, **options}
    return SpectralRadius(mu=mu, K=K, **options)


def entropy_sgd(variant: str) -> Optimizer:
    """Entropy-SGD with the paper's rate and momentum; as published without inner steps."""
    return optim.EntropySGD(lr=0.1, momentum=0.9, nesterov=True, steps=0 if variant == "published" else 20)


@dataclass(frozen=True)
class valley:
    """The learning rate of the asymmetric-valley runs: ``start`` up to half of the ``ramp`` epochs, then down a line to
    ``low`` at nine tenths of them, and ``start`` again from epoch ``again`` on.

    >>> rate = valley()
    >>> [round(rate(np.arange(1), epoch), 3) for epoch in (1, 80, 113, 150, 200, 201)]
    [0.5, 0.5, 0.273, 0.05, 0.05, 0.5]
    """

    start: float = 0.5
    low: float = 0.05
    ramp: int = 161
    again: int = 201

    def __call__(self, k: np.ndarray, epoch: int) -> float:
        if epoch >= self.again:
            return self.start
        part = min(max((epoch / self.ramp - 0.5) / 0.4, 0.0), 1.0)
        return self.start + part * (self.low - self.start)


def valley_optimizer(variant: str, epochs: int) -> tuple[Optimizer, int]:
    """The asymmetric-valley method and its number of epochs, where other methods have ``epochs``: for their 100 it runs
    250, of which it averages the iterates after epochs 161 to 200.

    As published the average is not used, and the best iterate of all epochs is reported. Else the average is the
    result, and the epochs after the last averaged one are left out, since they change nothing.

    >>> valley_optimizer("published", 100)[1]
    250
    """
    first, last, all_epochs = (max(1, round(share * epochs)) for share in (1.61, 2.0, 2.5))
    base = optim.SGD(lr=valley(ramp=first, again=last + 1))
    if variant == "published":
        return base, all_epochs
    return optim.SWA(base=base, first=first, last=last), last
