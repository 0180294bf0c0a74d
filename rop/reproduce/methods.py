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

from typing import Any

from rop import optim
from rop.optim import Optimizer, SpectralRadius

__all__ = ["PUBLISHED_ORDER", "entropy_sgd", "penalty", "valley_optimizer"]

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
