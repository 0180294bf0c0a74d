"""K-FAC as an optimizer: natural gradient descent with Kronecker factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rop.arguments import check_choice, check_float, check_int
from rop.errors import ArgumentError
from rop.kernels import rules
from rop.optim.method import Memory, Problem, Step
from rop.optim.schedules import Schedule, check_schedule
from rop.optim.sgd import SGD

if TYPE_CHECKING:
    from rop.graph import Graph
    from rop.objective import Point

COUNT = "kfac_count"  # how often the averages of the factors have taken in a batch
FACTORS = ("inputs", "outputs")  # A and S; of layer i they are the arrays "kfac_inputs_i" and "kfac_outputs_i"


@dataclass(frozen=True)
class KFAC:
    """w ← w − lr·(momentum of ν·u), u = (S ⊗ A + damping·I)⁻¹ ∇f in every layer (Martens & Grosse 2015).

    A = E[ā āᵀ] and S = E[δ δᵀ] are the factors of a Linear or Conv2d layer, see rop.kfac: ā its inputs and a 1, δ the
    gradients of its outputs for targets drawn from the net's own distribution. With their eigenvectors Q and
    eigenvalues d, and the gradient G of [W b], as in the widely used version for PyTorch:

        U = Q_S (Q_Sᵀ G Q_A / (d_S d_Aᵀ + damping)) Q_Aᵀ
        ν = min(1, √(kl_clip / Σ lr² uᵀ∇f)), the sum over all these layers

    Every ``covariance_every`` steps the factors of the step's batch are taken into running averages, A ← decay·A +
    (1 − decay)·A_batch; every ``inverse_every`` steps their eigenvectors are computed anew. A layer that is used more
    than once has one pair of factors, in which its uses count like the pixels of a convolution. Parameters without
    factors, those of batchnorm, move by their plain gradient, which ν does not shorten. The gradient of a penalty is
    added to ∇f before everything else. Weight decay is added to ν·u.

    Args:
        lr, momentum, weight_decay: as for SGD.
        decay: of the running averages of the factors.
        damping: λ of (S ⊗ A + λI)⁻¹.
        kl_clip: the largest lr² uᵀ∇f, about twice the KL divergence of a step; None: any.
        covariance_every, inverse_every: the intervals, in steps.
        initial: "identity": the averages begin as identity matrices, as in that version; "batch": as the factors of the
            first batch, and the k-th batch has the weight max(1/k, 1 − decay), as in the paper.
        fisher: "model", or "empirical" for the targets of the data, see rop.kfac.kfac.

    >>> KFAC(lr=0.01, damping=0.03).inverse_every
    100
    """

    lr: Schedule = 1e-3
    momentum: float = 0.9
    decay: float = 0.95
    damping: float = 1e-3
    kl_clip: float | None = 1e-3
    covariance_every: int = 10
    inverse_every: int = 100
    weight_decay: float = 0.0
    initial: str = "identity"
    fisher: str = "model"

    def __post_init__(self) -> None:
        owner = "KFAC"
        check_schedule(owner, "lr", self.lr)
        for name in ("momentum", "decay"):
            if not 0 <= check_float(owner, name, getattr(self, name)) < 1:
                raise ArgumentError(f"{owner}: {name} must lie in [0, 1), got {getattr(self, name)}")
        check_float(owner, "damping", self.damping, positive=True)
        if self.kl_clip is not None:
            check_float(owner, "kl_clip", self.kl_clip, positive=True)
        check_int(owner, "covariance_every", self.covariance_every)
        check_int(owner, "inverse_every", self.inverse_every)
        check_float(owner, "weight_decay", self.weight_decay, minimum=0)
        check_choice(owner, "initial", self.initial, ("identity", "batch"))
        check_choice(owner, "fisher", self.fisher, ("model", "empirical"))

    @property
    def outer(self) -> SGD:
        """The optimizer that makes the step along ν·u."""
        return SGD(self.lr, self.momentum, weight_decay=self.weight_decay)

    def start(self, problem: Problem) -> Memory:
        """The velocity, and of each layer the averages of its factors with their eigenvalues and eigenvectors, all
        (groups, size, size) or (groups, size) in float64."""
        memory = {**self.outer.start(problem), COUNT: np.zeros(1, np.int64)}
        for i, index in enumerate(places(problem.net).values()):
            groups, outputs, inputs = index.shape
            for factor, size in zip(FACTORS, (inputs, outputs), strict=True):
                name = f"kfac_{factor}_{i}"
                memory[name] = np.tile(np.eye(size), (groups, 1, 1))
                memory[f"{name}_values"], memory[f"{name}_vectors"] = np.ones((groups, size)), memory[name].copy()
        return memory

    def step(self, now: Step, memory: Memory) -> None:
        """One step in Python; compiled code makes the same direction."""
        if "kfac_places" not in now.cache:
            now.cache["kfac_places"] = list(places(now.objective.net).values())
        if self.is_due(now.number, memory):
            self.prepare(now.point, now.number, now.seed, memory)
        now.gradient = self._direction(now, memory, now.cache["kfac_places"])
        self.outer.step(now, memory)

    # ------------------------------------------------------------------------------------------- factors, now and then
    def is_due(self, number: int, memory: Memory) -> bool:
        """Whether there is something to ``prepare`` before the step of this number, counted from 1."""
        return self._takes_in(number, memory) or self._decomposes(number, memory)

    def prepare(self, point: Point, number: int, seed: int, memory: Memory) -> bool:
        """Takes the factors at a point, where the step of this number begins, into the running averages, and computes
        eigenvectors, each if it is its turn; returns whether there are new eigenvectors."""
        takes_in, decomposes = self._takes_in(number, memory), self._decomposes(number, memory)
        if takes_in:
            self._take_in(point, [seed, number], memory)
        if decomposes:
            _decompose(memory)
        return decomposes

    def _takes_in(self, number: int, memory: Memory) -> bool:
        return bool(memory[COUNT][0] == 0 or (number - 1) % self.covariance_every == 0)

    def _decomposes(self, number: int, memory: Memory) -> bool:
        return bool(memory[COUNT][0] == 0 or (number - 1) % self.inverse_every == 0)

    def _take_in(self, point: Point, seed: list[int], memory: Memory) -> None:
        """Takes the factors of the step's batch into the running averages."""
        from rop.curvature.kfac import sums_at

        memory[COUNT] += 1
        part = 1 - self.decay
        if self.initial == "batch":
            part = max(1 / int(memory[COUNT][0]), part)
        for i, (_, *new) in enumerate(sums_at(point, self.fisher, np.random.default_rng(seed)).means()):
            for factor, mean in zip(FACTORS, new, strict=True):
                average = memory[f"kfac_{factor}_{i}"]
                average[:] = rules.averaged(average, mean, part)

    # ------------------------------------------------------------------------------------------------------- direction
    def _direction(self, now: Step, memory: Memory, places: list[np.ndarray]) -> np.ndarray:
        """ν·u, and the plain gradient of parameters without factors, (n,)."""
        gradient = now.gradient.astype(np.float64)
        blocks = [gradient[index] for index in places]  # (groups, outputs, inputs)
        preconditioned = [self._solve(block, memory, i) for i, block in enumerate(blocks)]
        decrease = sum(float(np.vdot(u, block)) for u, block in zip(preconditioned, blocks, strict=True))
        scale = rules.natural_scale(self.kl_clip or 0.0, now.rate, decrease)
        for index, u in zip(places, preconditioned, strict=True):
            gradient[index] = scale * u
        return gradient.astype(now.w.dtype)

    def _solve(self, block: np.ndarray, memory: Memory, i: int) -> np.ndarray:
        """(S ⊗ A + damping·I)⁻¹ of layer i on a block (groups, outputs, inputs)."""
        S, A, weights = self.inverse(memory, i)
        return S @ (weights * (S.swapaxes(1, 2) @ block @ A)) @ A.swapaxes(1, 2)

    def inverse(self, memory: Memory, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(S ⊗ A + damping·I)⁻¹ of layer i: the eigenvectors of S and of A, (groups, size, size), and its eigenvalues
        (groups, outputs, inputs)."""
        (a, A), (s, S) = (
            (memory[f"kfac_{factor}_{i}_values"], memory[f"kfac_{factor}_{i}_vectors"]) for factor in FACTORS
        )
        return S, A, 1 / (s[:, :, None] * a[:, None, :] + self.damping)


def places(net: Graph | None) -> dict[str, np.ndarray]:
    """Layers with factors by name, and where their [W b] stand in w, (groups, outputs, inputs + bias)."""
    from rop.curvature.kfac import layers_with_factors, positions

    assert net is not None, "rop.train gives the net"
    return {net.name_of(layer): positions(net, layer) for layer in layers_with_factors(net)}


def _decompose(memory: Memory) -> None:
    """Eigenvalues and eigenvectors of the averages as they are now. They are memory, not cache: the averages have moved
    on when a run is resumed."""
    for name in [name for name in memory if f"{name}_values" in memory]:
        values, vectors = np.linalg.eigh(memory[name])
        memory[f"{name}_values"][:], memory[f"{name}_vectors"][:] = np.maximum(values, 0), vectors
