"""The spectral radius of the Hessian as a penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rop.arguments import check_bool, check_choice, check_float, check_int
from rop.errors import ArgumentError
from rop.kernels.rules import STOP_RULES
from rop.optim.method import Memory, Problem, Step, check_shortening
from rop.optim.schedules import Schedule, check_schedule
from rop.optim.start import STARTS, first_direction

SOLVERS = ("power", "track", "lanczos", "lobpcg", "paper_lobpcg")


@dataclass(frozen=True)
class SpectralRadius:
    """The penalty μ·max(0, ρ(w) − K), ρ the spectral radius of the Hessian of the batch's loss.

    Args:
        mu: its weight, a number or a schedule.
        K: the spectral radius up to which there is no penalty.
        solver: how the dominant eigenpair is found. "power": Algorithm 1. "track": the eigenvector of the step before,
            improved by ``products`` products. Where it is too inaccurate, ‖Hv − λv‖ > |λ|, the step leaves the penalty
            out. "lanczos", "lobpcg", "paper_lobpcg" (Algorithm 2): see rop.eigen; their steps return to Python.
        tol: tolerance, a number or a schedule; see ``stop``.
        stop: "relative": ‖Hv − λv‖ ≤ tol·|λ|; "paper": ‖Hv − λv‖ ≤ tol, or |λ| changed by less than tol·|λ|;
            "published", as the authors' code: also when ‖Hv − λv‖ changed by less than a thousandth.
        maxiter: most iterations per step.
        warm_start: start from the eigenvector of the step before, not from a new vector.
        start_vector: what a search starts from that has no step before it: a "random" vector, or the "constant" one
            of the authors' code, whose components are all 1/√n.
        signed: whether ∇ρ has the sign of λ, as the gradient of ρ = |λ| does. The authors' code leaves it out, which
            lowers a negative dominant λ further.
        clip: longest ∇ρ; None for any length.
        limit: the part of ρ that one step may take away, to first order: ∇ρ is shortened to α μ ‖∇ρ‖² ≤ limit·ρ, α the
            learning rate, lest a sudden ρ throw w into a corner where all gradients vanish. None: no such limit, which
            is Algorithm 1 to the letter.
        products: number of products per step of "track".
        refresh: steps after which "paper_lobpcg" makes its K-FAC preconditioner anew (the paper's b).

    >>> SpectralRadius(mu=0.01).solver
    'power'
    """

    mu: Schedule = 0.01
    K: float = 0.0
    solver: str = "power"
    tol: Schedule = 1e-3
    stop: str = "paper"
    maxiter: int = 100
    warm_start: bool = True
    clip: float | None = None
    products: int = 2
    refresh: int = 4
    limit: float | None = 0.5
    signed: bool = True
    start_vector: str = "random"

    def __post_init__(self) -> None:
        owner = "SpectralRadius"
        check_schedule(owner, "mu", self.mu)
        check_float(owner, "K", self.K)
        check_choice(owner, "solver", self.solver, SOLVERS)
        check_schedule(owner, "tol", self.tol)
        check_choice(owner, "stop", self.stop, STOP_RULES)
        check_int(owner, "maxiter", self.maxiter)
        check_bool(owner, "warm_start", self.warm_start)
        check_bool(owner, "signed", self.signed)
        check_choice(owner, "start_vector", self.start_vector, STARTS)
        check_shortening(owner, self.clip, self.limit)
        check_int(owner, "products", self.products)
        check_int(owner, "refresh", self.refresh)
        if self.solver == "track" and not self.warm_start:
            raise ArgumentError(
                "SpectralRadius: solver 'track' follows the eigenvector from step to step, got "
                "warm_start=False; use solver='power'"
            )

    @staticmethod
    def completed(saved: dict[str, Any]) -> dict[str, Any]:
        """Settings as earlier versions saved them. Before there was a ``limit``, "track" had one of 0.5 and the other
        solvers had none; ``signed`` and ``start_vector`` came later."""
        limit = 0.5 if saved.get("solver") == "track" else None
        return {"limit": limit, "signed": True, "start_vector": "random", **saved}

    @property
    def compiled(self) -> bool:
        """Whether whole epochs can run in compiled code."""
        return self.solver in ("power", "track")

    def start(self, problem: Problem) -> Memory:
        """The first direction v and, for "paper_lobpcg", the parameters and the rows of the data from which its K-FAC
        preconditioner was made: a run that is resumed makes the same one."""
        memory = {"v": first_direction(problem.size, problem.dtype, problem.seed, self.start_vector)}
        if self.solver == "paper_lobpcg":
            memory |= {"kfac/w": problem.zeros(), "kfac/batch": np.full(problem.batch_size, -1, np.int64)}
        return memory

    def value_and_gradient(self, now: Step, memory: Memory) -> tuple[float, np.ndarray | None, dict[str, float]]:
        """ρ at the step's point and μ∇ρ, shortened by ``clip`` and ``limit``; None where the step goes without it."""
        from rop.training.penalty import dominant

        found, gradient = dominant(
            self,
            memory["v"],
            now.point,
            seed=now.seed,
            number=now.number - 1,
            mu=now.mu,
            tol=now.tol,
            rate=now.rate,
            preconditioner=self._preconditioner(now, memory),
        )
        return found.rho, gradient, {"residual": float(found.residuals[0]), "hvps": float(found.hvps)}

    def _preconditioner(self, now: Step, memory: Memory) -> Any:
        """K-FAC's T of this step, or of one of the last ``refresh`` steps."""
        if self.solver != "paper_lobpcg":
            return None
        from rop.kfac import kfac

        w, batch, point = memory["kfac/w"], memory["kfac/batch"], None
        if (now.number - 1) % self.refresh == 0 or batch[0] < 0:
            w[:], point = now.w, now.point
            batch[:] = -1  # the last batch of an epoch may be a partial one
            batch[: now.batch.size] = now.batch
            now.cache.pop("kfac", None)
        if "kfac" not in now.cache:
            now.cache["kfac"] = kfac(point or now.objective_of(batch[batch >= 0]).at(w), seed=now.seed)
        return now.cache["kfac"]
