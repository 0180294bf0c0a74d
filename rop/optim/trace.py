"""The trace of the Hessian as a penalty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rop.arguments import check_float, check_int
from rop.optim.method import Memory, Step, check_shortening
from rop.optim.schedules import Schedule, check_schedule

STREAM = 1  # apart from the random numbers that optimizers draw from (seed, step)


@dataclass(frozen=True)
class Trace:
    """The penalty μ·max(0, tr H(w) − K), tr H the trace of the Hessian of the batch's loss, by Hutchinson's estimate.

    With ``samples`` vectors z of random signs the value is the mean of zᵀHz and its gradient the mean of zᵀ∇Hz; both
    are unbiased. The signs depend on the seed of the run and the number of the step only. Eigenvalues count with their
    sign, so negative ones lower the trace: use TopEigenvalues where magnitudes matter. K is compared with the estimate,
    which is noisy: its variance is 2 Σ_{i≠j} H_ij² / samples.

    Args:
        mu: its weight, a number or a schedule.
        K: the trace up to which there is no penalty, at least 0.
        samples: the number of vectors in a step; each costs a product Hz and a pass of order 2.
        clip, limit: longest gradient, and the part of the trace that one step may take away; see SpectralRadius.

    >>> Trace(mu=0.01).samples
    4
    """

    mu: Schedule = 0.01
    K: float = 0.0
    samples: int = 4
    clip: float | None = None
    limit: float | None = 0.5

    def __post_init__(self) -> None:
        owner = "Trace"
        check_schedule(owner, "mu", self.mu)
        check_float(owner, "K", self.K, minimum=0)
        check_int(owner, "samples", self.samples)
        check_shortening(owner, self.clip, self.limit)

    def value_and_gradient(self, now: Step, memory: Memory) -> tuple[float, np.ndarray | None, dict[str, float]]:
        """The estimate of tr H and μ times its gradient, shortened; None where it is at most K."""
        from rop.kernels.rules import takes_part
        from rop.training.block_penalty import signs, trace_estimate, trace_gradient
        from rop.training.penalty import weighted

        probes = signs(now.w.size, self.samples, now.w.dtype, [now.seed, now.number, STREAM])
        value, numbers = trace_estimate(now.point, probes), {"hvps": float(self.samples)}
        if not takes_part(value, self.K, 0.0, 0.0):
            return value, None, numbers
        return value, weighted(self, value, trace_gradient(now.point, probes), now.mu, now.rate), numbers
