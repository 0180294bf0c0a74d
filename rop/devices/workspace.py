"""A workspace: the memory of one network on batches of one size, on one device, and the one question it answers.

An objective asks: *evaluate these orders at this position along this direction*. A workspace knows which orders of
which position are resident in its memory, so it decides which lower orders have to be computed first; the law of the
engine is that order k reads orders ≤ k and writes order k. Inside, order k is stored as a Taylor coefficient
a_k = R^k{a} / k!; answers are derivatives.

``rop/devices/cpu/workspace.py`` and ``rop/devices/cuda/workspace.py`` implement the part below the line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from rop.devices.batch import Data
from rop.devices.emission import BaseLayout
from rop.errors import ArgumentError, RopError
from rop.layers.base import Layer
from rop.lowering import Plan
from rop.lowering.batchnorm import BatchNormOperation

Vector = Any  # (n,): a NumPy array, or an array on the device
Block = Any  # (n, k), likewise
Orders = tuple[tuple[int, int], ...]  # what a pass computes: (order, direction), in the order in which they run

FACTORIAL = (1.0, 1.0, 2.0)  # from Taylor coefficients to derivatives


@dataclass(eq=False, slots=True)
class Position:
    """Where a network is evaluated. It is known by identity: a workspace remembers whose activations are resident."""

    data: Data
    state: Mapping[str, np.ndarray] | None  # running statistics, in evaluation mode
    w: Vector  # (n,); the caller's own array until the position becomes resident, a copy from then on
    check_finite: bool = True
    owns_w: bool = False  # whether w is such a copy


@lru_cache
def pass_of(first: int, orders: tuple[int, ...]) -> tuple[Orders, tuple[int, ...]]:
    """The pass that runs all orders from ``first`` on, and the positions in it of the orders that are asked for."""
    return tuple((k, 0) for k in range(first, orders[-1] + 1)), tuple(k - first for k in orders)


class UserVectors(Protocol):
    """Vectors on their way in and out of a workspace; ``vectors.py`` of a device implements it."""

    def accept(self, name: str, value: Any) -> Vector:
        """An array in the device's memory as its workspace takes it."""

    def keep(self, w: Vector) -> Vector:
        """A copy of w on the same side, for a position to hold."""

    def given(
        self, results: Sequence[Vector], orders: tuple[int, ...], w: Vector, v: Vector | None
    ) -> Sequence[Vector]:
        """Results for the user: that of order 0 on the same side as w, the others on the same side as v."""

    def rows_of(self, columns: Block) -> Any:
        """The columns of a block as a sequence of contiguous vectors."""

    def new_block(self, k: int, like: Block) -> tuple[Block, list[Vector]]:
        """A block (n, k) for the user on the same side as ``like``, and a place for each of its columns."""

    def multiply(self, vector: Vector, factor: float) -> None:
        """Multiplies a result by a number."""


class Gram(NamedTuple):
    """Σ ā āᵀ and Σ δ δᵀ over all samples and places of one use of a Linear or Conv2d layer: ā are its inputs, and a 1
    if it has a bias, δ the gradients of its outputs times a factor of the sample."""

    layer: Layer
    places: int  # of a sample
    inputs: np.ndarray  # (groups, inputs + bias, inputs + bias), inputs in the order of W's columns
    outputs: np.ndarray  # (groups, outputs, outputs)


class Normalisation(Protocol):
    """The emitter of a batchnorm layer, as far as workspaces of all devices know it."""

    operation: BatchNormOperation
    state_at: int  # where its running statistics start in the region "state"


class LoweredNetwork(Protocol):
    """``Lowered`` of a device, as far as workspaces of all devices know it."""

    @property
    def layout(self) -> BaseLayout:
        """Where everything lies."""

    @property
    def normalisations(self) -> Sequence[Normalisation]:
        """The emitters of batch normalisation."""


class Workspace(ABC):
    """Buffers for one plan and one batch size; the activations of at most one position are resident at a time.

    It has 31 methods because the question and what a device implements for it stand in one class: 20 here decide which
    orders run and what stays resident, and 11 abstract ones are the whole of what a new device must write.
    """

    plan: Plan
    batch: int
    lanes: int  # samples of a tile, padding included
    tiles: int
    chunk: int  # tiles of which order 0 is there at a time where it is not resident
    kept: int  # orders that stay resident between passes, from 0 on: 3, 1 or 0
    dtype: np.dtype
    lowered: LoweredNetwork
    vectors: UserVectors
    constants: tuple[slice, ...] = ()  # parts of w that are no variables: v counts as 0 there, and so do results
    _position: Position | None = None  # whose order 0 is resident,
    _has_direction: bool = False  # and whether order 1 of the direction in "v0" is resident as well

    # ---- the question --------------------------------------------------------------------------------------------
    def evaluate(
        self, position: Position, orders: tuple[int, ...], v: Vector | None = None, *, keep: bool = True
    ) -> Sequence[Vector]:
        """Derivatives of f at a position, in the user's memory: ∇f for order 0, H v for order 1, vᵀ∇H v for order 2.

        With ``keep`` the position becomes resident, which is for a point that will be asked again: its w is copied, and
        so is v. A later question then starts at the lowest order that is not resident.
        """
        if self.constants and v is not None:
            v = self._variable_part(v)
        answers = self.vectors.given(self._run_orders(position, orders, v), orders, position.w, v)
        if keep:
            self._make_resident(position, v)
        else:
            self.release("w", "v0")
        if self.constants:
            for answer in answers:
                self._clear_constants(answer)
        return answers

    def product(self, position: Position, v: Vector) -> Vector:
        """H v in the workspace's own memory, valid until the next question; for solvers whose vectors stay here."""
        if self.constants:
            v = self._variable_part(v)
        (result,) = self._run_orders(position, (1,), v)
        self._make_resident(position, v)
        self._clear_constants(result)
        return result

    def products(self, position: Position, columns: Block) -> Block:
        """H times the columns of a block (n, k). Several directions share a pass, so that what a part of the batch
        needs of order 0 is fetched or computed once for all of them."""
        self._place(position)
        rows = self.vectors.rows_of(columns)
        if self.constants:
            rows = [self._variable_part(row) for row in rows]
        result, places = self.vectors.new_block(len(rows), columns)
        for start in range(0, len(rows), self.together):
            part = rows[start : start + self.together]
            for i, row in enumerate(part):
                self._lend(f"v{i}", row, position)
            lower = () if self._is_resident(position) else ((0, 0),)
            orders = lower + tuple((1, i) for i in range(len(part)))
            self.run(orders, tuple(range(len(lower), len(orders))), into=places[start : start + self.together])
            self._make_resident(position, None)
            self.release(*(f"v{i}" for i in range(len(part))))
        for place in places:
            self._clear_constants(place)
        return result

    def _variable_part(self, v: Vector) -> Vector:
        """A copy of v with zeros where w is constant."""
        v = self.vectors.keep(v)
        self._clear_constants(v)
        return v

    def _clear_constants(self, vector: Vector) -> None:
        """Writes zeros where w is constant."""
        for part in self.constants:
            vector[part] = 0

    def planes(self, position: Position) -> Iterator[tuple[int, np.ndarray]]:
        """Order 0 of a position, values and gradients, in the layout of the plan; see ``order_zero``."""
        if self.kept and not self._is_resident(position):
            self.evaluate(position, (0,))
        self._place(position)
        self._make_resident(position, None)
        yield from self.order_zero()

    def grams(self, position: Position, root: np.ndarray) -> list[Gram] | None:
        """The sums of every use of a layer at a position, which the next question overwrites; ``root`` has the factor
        of each sample's gradients (batch,). None on a device that has no kernel for them."""
        return None

    def check_resident(self, position: Position) -> None:
        """Refuses to go on reading planes that another question has overwritten."""
        if self._position is not position:
            raise RopError(
                "activations: the objective was asked for something else while they were being read; collect them "
                "first, by list(point.activations())"
            )

    def value(self, k: int) -> float:
        """Derivative k of r ↦ f(w + r v) at r = 0, as the loss reported it in the last pass of order k."""
        return FACTORIAL[k] * self.energy(k)

    def batch_statistics(self) -> dict[str, np.ndarray]:
        """Mean and unbiased variance in the last pass of every batchnorm layer that uses them, named as in
        ``net.init_state()``."""
        result: dict[str, np.ndarray] = {}
        if not self.plan.coupled:
            return result
        for emitter, (mean, variance, count) in zip(self.lowered.normalisations, self.statistics(), strict=True):
            if emitter.operation.frozen:
                continue
            name = self.plan.graph.name_of(emitter.operation.layer)
            result[f"{name}.running_mean"] = mean.copy()
            result[f"{name}.running_var"] = variance * count / (count - 1)
        return result

    def running_statistics(self, state: Mapping[str, np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        """Mean and variance (2 · channels,) of every batchnorm layer, and where they start in the region "state"."""
        for emitter in self.lowered.normalisations:
            name = self.plan.graph.name_of(emitter.operation.layer)
            yield emitter.state_at, np.concatenate([state[f"{name}.running_mean"], state[f"{name}.running_var"]])

    def forget(self) -> None:
        """Declares that nothing is resident any more."""
        self._position, self._has_direction = None, False

    # ---- which orders have to run --------------------------------------------------------------------------------
    def _run_orders(self, position: Position, orders: tuple[int, ...], v: Vector | None) -> Sequence[Vector]:
        """Runs the orders asked for and the lower ones that are not resident; results of order 2 are derivatives."""
        self._place(position)
        first = self._first_order(position, orders)
        if first == 2 and not self.holds("v0", v):
            first = 1
        if v is not None and first < 2:
            self._lend("v0", v, position)
        found = self.run(*pass_of(first, orders))
        if orders[-1] == 2:  # a Taylor coefficient until now
            self.vectors.multiply(found[-1], FACTORIAL[2])
        return found

    def _first_order(self, position: Position, orders: tuple[int, ...]) -> int:
        """The lowest order that has to run: one that is asked for, or one that is not resident. 2 if v is equal to the
        direction whose order 1 is resident, else 1."""
        if orders[0] == 0 or not self._is_resident(position):
            return 0
        return 2 if orders[0] == 2 and self.kept == 3 and self._has_direction else 1

    def _is_resident(self, position: Position) -> bool:
        """Whether order 0 of this position can be read."""
        return self._position is position and self.kept > 0

    def _place(self, position: Position) -> None:
        """Puts batch, running statistics and parameters of a position in place; w is lent, not copied."""
        if self._position is not position:
            self._turn_to(position)
            self._lend("w", position.w, position)

    def _turn_to(self, position: Position) -> None:
        """Puts batch and running statistics of a position in place; its w is still to come."""
        self.bind(position.data)
        if position.state is not None:
            self.put_state(position.state)
        self.forget()

    def _lend(self, name: str, vector: Vector, position: Position) -> None:
        """Lends a vector of parameters to the passes: they read it where it is until it is settled or released."""
        if name != "w":
            self._has_direction = False
        if not self.borrow(name, vector, position.check_finite) and position.check_finite:
            raise self.not_finite(name)

    def not_finite(self, name: str) -> ArgumentError:
        """The refusal of a vector with NaN or Inf in it."""
        return ArgumentError(
            f"{name[0]}: expected finite numbers, got NaN or Inf (in {self.dtype}); "
            "check_finite=False switches the check off"
        )

    def _make_resident(self, position: Position, v: Vector | None) -> None:
        """Remembers whose activations are here, with copies of w and v, because the caller may change them."""
        if self._position is not position:
            if not position.owns_w:
                position.w, position.owns_w = self.vectors.keep(position.w), True
            self.settle("w", position.w)
            self._position = position
        if v is not None:
            self.settle("v0")
            self._has_direction = True

    # ---- what a device implements --------------------------------------------------------------------------------
    @property
    @abstractmethod
    def together(self) -> int:
        """How many directions go through the network in one pass."""

    @abstractmethod
    def bind(self, data: Data) -> None:
        """Makes this batch the one that passes read."""

    @abstractmethod
    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Puts running statistics in place, for evaluation mode."""

    @abstractmethod
    def borrow(self, name: str, vector: Vector, check: bool = True) -> bool:
        """Makes a vector the one that passes read as "w", "v0", "v1", … and reserves memory for what is derived from
        it; returns whether it is finite, as far as ``check`` asks for it. The vector may be read where it is, so it
        must not change until it is settled or released, or another one takes its place."""

    @abstractmethod
    def settle(self, name: str, copy: Vector | None = None) -> None:
        """Copies a vector that was borrowed, or borrows this copy of it instead."""

    @abstractmethod
    def release(self, *names: str) -> None:
        """Lets go of vectors that were borrowed; others must take their places before the next pass."""

    @abstractmethod
    def holds(self, name: str, vector: Vector) -> bool:
        """Whether the vector that was settled last under this name is equal to this one."""

    @abstractmethod
    def run(self, orders: Orders, results: tuple[int, ...], into: list[Vector] | None = None) -> list[Vector]:
        """Runs (order, direction) pairs over the batch; returns the parameter gradients of the positions ``results``
        in Taylor coefficients, or writes them ``into`` places of ``new_block``."""

    @abstractmethod
    def energy(self, k: int) -> float:
        """Order k of the loss in the last pass, a Taylor coefficient."""

    @abstractmethod
    def statistics(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Mean, variance and number of values per channel of every batchnorm layer, in the order of the emitters."""

    @abstractmethod
    def order_zero(self) -> Iterator[tuple[int, np.ndarray]]:
        """Number of the first tile, and order 0 of some tiles (tiles, words) in the layout of the plan."""
