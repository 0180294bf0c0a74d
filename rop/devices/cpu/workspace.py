"""The memory of one network on batches of one size, and the passes bound to it.

A batch of B samples is cut into tiles of T lanes, tiles into chunks. A chunk's partial sums are added up in the order
of its tiles, chunks are added up in their order in float64: T and the chunk depend on the network and on B only, never
on threads or on the memory limit, so neither changes a bit of the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rop.devices.batch import Data, orders_kept
from rop.devices.cpu import guard
from rop.devices.cpu.choice import LANES, choose_images, choose_lanes, choose_layout
from rop.devices.cpu.code import Bound
from rop.devices.cpu.emit import Lowered, result_region
from rop.devices.cpu.execution import Execution
from rop.devices.cpu.factors import FactorSums
from rop.devices.cpu.regions import Regions, Tiling
from rop.devices.cpu.threads import Pace
from rop.devices.cpu.vectors import CACHE_LINE, Vectors, aligned
from rop.devices.workspace import FACTORIAL, Gram, Orders, Position, Workspace, pass_of
from rop.graph import Graph
from rop.kernels import warm
from rop.kernels.cpu import batchnorm, interpreter, transfer
from rop.layers.base import Shape
from rop.layers.loss import Loss
from rop.lowering import ORDERS, Plan, outline

CHUNK_BYTES = 32 << 20  # the planes and partial sums of a chunk should not exceed this, …
CHUNK_TILES = 64  # … nor should its number of tiles exceed this, …
CHUNK_LEAST = 4  # … but a chunk has at least this number of tiles, for threads to share
ALL_ORDERS = ((0, 0), (1, 0), (2, 0))  # (order, direction)
BLOCK_OF_VECTORS = 8  # directions that go through the network together


class Cost(NamedTuple):
    """The CPU time of one instruction."""

    where: str  # the layer that it works for
    kernel: str
    seconds: float


@dataclass(eq=False)
class Pass:
    """A pass bound to its buffers, where its results are, and the batch whose addresses it holds."""

    bound: Bound
    results: list[np.ndarray]
    table: np.ndarray  # for questions about short vectors (see ``transfer._ask``),
    question: int  # its address, or 0 if the pass runs by itself,
    missing: list[np.ndarray]  # and what stands for the results that other questions have
    data: Data | None = None
    places: dict[str, int] = field(default_factory=dict)  # addresses of vectors that it reads elsewhere


class CpuWorkspace(Workspace):
    """The workspace on the CPU: tiles of lanes in planes, one plane for each order."""

    vectors: Vectors
    lowered: Lowered

    def __init__(self, plan: Plan, batch: int, memory_limit: int | None, one_chunk: bool = False):
        self.plan, self.batch = plan, batch
        self.dtype = plan.dtype
        self.images = choose_images(plan, batch, at_once=one_chunk)
        self.lanes = -(-self.images // LANES[0]) * LANES[0] if plan.pixel_lanes else choose_lanes(plan, batch)
        self.lowered = Lowered(plan, self.lanes, self.images)
        self.layout = self.lowered.layout
        self.tiles = -(-batch // self.lanes)
        self.stride = -(-max(self.layout.plane_sizes.values()) // CACHE_LINE) * CACHE_LINE + CACHE_LINE
        self.chunk = self.tiles if one_chunk else self._chunk()
        self.kept = orders_kept(plan, self.stride, self.tiles, self.chunk, batch, memory_limit)
        self._data: Data | None = None
        self._passes: dict[tuple[Orders, tuple[int, ...]], Pass] = {}
        self._lent: dict[str, np.ndarray] = {}  # long vectors that passes read where they are,
        self._places: dict[str, int] = {}  # and where passes find each vector that ever was one of them
        self._answers: dict[tuple[int, tuple[int, ...]], Pass] = {}  # by their first order and the orders asked for
        self._ensure_compiled(training=one_chunk)
        self.vectors = Vectors(plan.graph.size, self.dtype)
        self.memory = Regions(self.layout, Tiling(self.tiles, self.chunk, self.kept, self.stride))
        self.execution = Execution(self.memory, self.dtype, self.forget)
        self._nothing = np.empty(0, self.dtype)
        self._factor_sums: FactorSums | None = None
        self._energies = [self.memory[f"energy{k}"][: self.tiles] for k in ORDERS]

    @classmethod
    def of(
        cls,
        net: Graph,
        shape: Shape,
        training: bool | None,
        loss: Loss | None,
        dtype: Any,
        batch: int,
        memory_limit: int | None,
        one_chunk: bool = False,
        layout: str | None = None,
        winograd: bool = True,
    ) -> CpuWorkspace:
        """The workspace of a network."""
        pixel_lanes = choose_layout(net, shape, batch, layout, winograd) == "pixels"
        return cls(outline(net, shape, training, loss, dtype, pixel_lanes, winograd), batch, memory_limit, one_chunk)

    def _ensure_compiled(self, training: bool) -> None:
        """Asks for all that this network may run, at all orders, at once: children compile in parallel what is missing
        in the cache."""
        if warm.complete(self.dtype):
            return
        # not self.lowered, which would keep the tables of this pass, too
        lowered = Lowered(self.plan, self.lanes, self.images)
        code = lowered.emit_pass(ALL_ORDERS, (0, 1, 2)) if self.plan.gradients else lowered.emit_outputs()
        names = code.functions(self.dtype).union(
            [interpreter.entry_name(parallel) for parallel in (True, False)],
            transfer.needed(self.dtype, self.plan.graph.size),
            [f"training.steps_{self.dtype.name}_parallel"] if training else [],
        )
        warm.ensure(self.dtype, names)

    def _chunk(self) -> int:
        if self.plan.coupled:
            return self.tiles
        if self.plan.pixel_lanes:  # threads share the work of each tile
            return 1
        per_tile = 3 * (self.stride + self.layout.partial_size * self.plan.itemsize)
        return min(self.tiles, max(CHUNK_LEAST, min(CHUNK_TILES, CHUNK_BYTES // per_tile)))

    def array(self, name: str) -> np.ndarray:
        """A region as an array."""
        return self.memory[name]

    def borrow(self, name: str, vector: np.ndarray, check: bool = True) -> bool:
        """Long vectors stay where they are: a copy costs twice, because its cache lines are in the core that wrote
        them, while those of a vector that nobody writes are in both. Short ones are copied."""
        if name not in self.memory:
            self.ensure_direction(int(name[1:]))
        if not self.vectors.are_long:
            return self.vectors.copy_into(self.memory[name], vector) or not check
        self._lent[name], self._places[name] = vector, int(vector.ctypes.data)
        return not check or self.vectors.finite(vector)

    def settle(self, name: str, copy: np.ndarray | None = None) -> None:
        if name in self._lent:
            if copy is None:
                self.vectors.copy_into(self.memory[name], self._lent[name])
                self.release(name)
            else:
                self.borrow(name, copy, check=False)

    def release(self, *names: str) -> None:
        for name in names:
            if self._lent.pop(name, None) is not None:
                self._places[name] = self.memory.address(name)

    def holds(self, name: str, vector: np.ndarray) -> bool:
        return self.vectors.equal(self.memory[name], vector)

    def energy(self, k: int) -> float:
        return math.fsum(self._energies[k].tolist())

    def statistics(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Mean, variance and number of values per channel of every batchnorm layer."""
        for emitter in self.lowered.normalisations:
            c = emitter.operation.channels
            table = self.memory["channels0"][emitter.table_at[0] :][: batchnorm.FIELDS * c].reshape(-1, c)
            yield table[batchnorm.MEAN], table[batchnorm.VARIANCE], table[batchnorm.COUNT]

    def order_zero(self) -> Iterator[tuple[int, np.ndarray]]:
        """Number of the first tile, and order 0 of tiles (tiles, words): all at once if they are kept, else computed
        again chunk by chunk."""
        plane = self.memory["plane0"].reshape(-1, self.stride // self.dtype.itemsize)
        if self.kept:
            yield 0, plane[: self.tiles]
            return
        ready = self.bound(((0, 0),), (0,))
        for first in range(0, self.tiles, self.chunk):
            tiles = min(self.chunk, self.tiles - first)
            self.execution.run(ready.bound, first, tiles)
            yield first, plane[:tiles]

    def grams(self, position: Position, root: np.ndarray) -> list[Gram]:
        """The sums of K-FAC at a position, chunk by chunk, so that they do not depend on what is kept."""
        if self._factor_sums is None:
            self._factor_sums = FactorSums(self)
        sums = self._factor_sums
        sums.set_factors(position.data.samples, root)
        memory = sums.begin()
        for first, plane in self.planes(position):
            for start in range(first, first + len(plane), self.chunk):
                sums.add(start, min(self.chunk, self.tiles - start))
        return sums.found(memory)

    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Running statistics for evaluation mode."""
        for start, statistics in self.running_statistics(state):
            self.memory["state"][start : start + statistics.size] = statistics

    def poison(self) -> None:
        """Fills everything that a pass must write before it reads with NaN (for tests)."""
        self.memory.poison()
        self.forget()

    # ---------------------------------------------------------------------------------------------------------- passes
    @property
    def together(self) -> int:
        """How many directions share a pass. Long ones run one by one where order 0 of the whole batch is resident and
        the batch is one chunk, because each then streams through the cache anyway. In all other cases a shared pass
        amortises the overhead of a pass and the recomputation of order 0."""
        resident = self.kept and self.tiles == self.chunk
        return 1 if resident and self.vectors.are_long else BLOCK_OF_VECTORS

    def ensure_direction(self, index: int) -> None:
        """Makes sure that there is memory for direction number ``index``."""
        self.memory.add_parameters(f"v{index}", 1 + index)

    def passes(self) -> list[Bound]:
        """The passes that have run so far."""
        return [ready.bound for ready in self._passes.values()]

    def bound(self, orders: Orders, results: tuple[int, ...]) -> Pass:
        """A pass ready to run on the current batch and vectors."""
        ready = self._passes.get((orders, results))
        if ready is None:
            ready = self._passes[orders, results] = self._make_pass(orders, results)
        if ready.data is not self._data:
            assert self._data is not None
            ready.bound.move(self._data.addresses())
            ready.data = self._data
        if ready.places != self._places:
            ready.bound.move(self._places)
            ready.places = self._places.copy()
        return ready

    def _make_pass(self, orders: Orders, results: tuple[int, ...]) -> Pass:
        for _, direction in orders:
            self.ensure_direction(direction)
        self.reserve_results(orders, results)
        code = self.lowered.emit_pass(orders, results) if self.plan.gradients else self.lowered.emit_outputs()
        n, names = self.plan.graph.size, [result_region(orders, i) for i in results]
        warm.ensure(self.dtype, code.functions(self.dtype))
        bound = Bound(code, self.memory.table, self.dtype)
        bound.pace = Pace(self.execution.work(bound, self.tiles))
        whole = self.chunk == self.tiles and not self.execution.takes_long(bound, self.tiles)
        short = whole and not self.vectors.are_long and 0 < len(names) <= transfer.RESULTS
        table = self._question(orders, results, bound) if short else self._nothing
        question = int(table.ctypes.data) if short else 0
        missing = [self._nothing] * (transfer.RESULTS - len(names))
        return Pass(bound, [self.memory[name][:n] for name in names], table, question, missing)

    def _question(self, orders: Orders, results: tuple[int, ...], bound: Bound) -> np.ndarray:
        """The table of ``transfer._ask`` for a pass over all tiles."""
        words = {transfer.W: self.memory.address("w"), transfer.V: self.memory.address("v0")}
        for place, i in enumerate(results):
            words[transfer.RESULT + place] = self.memory.address(result_region(orders, i))
            words[transfer.FACTOR + place] = int(FACTORIAL[orders[i][0]])
        table, stages, count = bound.address
        words |= {transfer.TABLE: table, transfer.STAGES: stages, transfer.STAGE_COUNT: count}
        words |= {transfer.TILES: self.tiles, transfer.ASKED: self.execution.asked_address}
        return np.array([words.get(i, 0) for i in range(transfer.WORDS)], np.int64)

    def reserve_results(self, orders: Orders, results: tuple[int, ...]) -> None:
        """Makes sure that there is memory for the results of a pass."""
        self.memory.add_slots(1 if self.lowered.collects_at_once else len(results))
        for i in results:
            self.memory.add_result(result_region(orders, i))

    def bind(self, data: Data) -> None:
        """Makes this batch the one that passes read."""
        if data is not self._data:
            self._data = data
            self.forget()
            self.memory["scale"][0] = data.scale

    def _run_orders(self, position: Position, orders: tuple[int, ...], v: np.ndarray | None) -> Sequence[np.ndarray]:
        """For short vectors one compiled call takes w and v in, runs the pass and hands the results out. It also finds
        out whether v is the direction that is resident; if it is not, order 1 has to run, too."""
        if self.vectors.are_long:
            return super()._run_orders(position, orders, v)
        w = nothing = self._nothing
        if self._position is not position:
            self._turn_to(position)
            w = position.w
        first = self._first_order(position, orders)
        ready = self._answers.get((first, orders))
        if ready is None or ready.data is not self._data:
            ready = self._answers[first, orders] = self.bound(*pass_of(first, orders))
        if not ready.question:
            return super()._run_orders(position, orders, v)
        wanted = (transfer.FINITE if position.check_finite else 0) | (transfer.SAME if first == 2 else 0)
        n, dtype = self.vectors.count, self.dtype
        fresh = [np.empty(n, dtype) for _ in orders]  # rows of one array would take longer
        self._has_direction = first == 2
        given = ready.question, wanted, w, nothing if v is None else v, *fresh, *ready.missing
        said = self.execution.ask(ready.bound, self.tiles, given)
        if said == transfer.DONE:
            return fresh
        if said == transfer.OTHER_V:
            self._has_direction = False
            return self._run_orders(position, orders, v)
        raise self.not_finite("w" if said == transfer.BAD_W else "v")

    def run(self, orders: Orders, results: tuple[int, ...], into: list[np.ndarray] | None = None) -> list[np.ndarray]:
        """Runs (order, direction) pairs over all tiles; returns the parameter gradients of the positions ``results``
        in Taylor coefficients, as fresh arrays or ``into`` places of ``new_block``."""
        ready = self.bound(orders, results)
        if self.chunk == self.tiles:
            return self._run_at_once(ready, orders, results, into)
        sums = [np.zeros(self.plan.graph.size) for _ in results]
        for first in range(0, self.tiles, self.chunk):
            self.execution.run(ready.bound, first, min(self.chunk, self.tiles - first))
            for total, result in zip(sums, ready.results, strict=True):
                total += result
        if into is None:
            return [total.astype(self.dtype) for total in sums]
        for place, total in zip(into, sums, strict=True):
            place[: total.size] = total
        return into

    def _run_at_once(
        self, ready: Pass, orders: Orders, results: tuple[int, ...], into: list[np.ndarray] | None
    ) -> list[np.ndarray]:
        n = self.plan.graph.size
        if not self.vectors.are_long:
            self.execution.run(ready.bound, 0, self.tiles)
            if into is None:
                return list(map(np.ndarray.copy, ready.results))
            for place, result in zip(into, ready.results, strict=True):
                place[:n] = result
            return into
        names = [result_region(orders, i) for i in results]
        arrays = [self.vectors.fresh() for _ in names] if into is None else into
        ready.bound.move({name: array.ctypes.data for name, array in zip(names, arrays, strict=True)})
        try:
            self.execution.run(ready.bound, 0, self.tiles, arrays)
        finally:
            ready.bound.move({name: self.memory.address(name) for name in names})
        return arrays

    def costs(self, position: Position, orders: tuple[int, ...], v: np.ndarray | None = None) -> list[Cost]:
        """What a question costs, instruction by instruction, each run alone on one thread. All orders up to the last
        one run, and those that are asked for have results, which are not handed out."""
        self._place(position)
        if v is not None:
            self._lend("v0", v, position)
        bound = self.bound(*pass_of(0, orders)).bound
        seconds = np.zeros(bound.length)
        for first in range(0, self.tiles, self.chunk):
            seconds += self.execution.costs(bound, first, min(self.chunk, self.tiles - first))
        self.release("w", "v0")
        self.forget()
        return [Cost(*one) for one in zip(bound.places, bound.names, seconds.tolist(), strict=True)]

    def outputs(self, data: Data, result: np.ndarray) -> None:
        """The forward pass alone; result (batch, features) gets the outputs."""
        self.bind(data)
        bound = self.bound(((0, 0),), ()).bound
        place = aligned(result.size, self.dtype).reshape(result.shape) if guard.ACTIVE else result
        bound.move(data.addresses(place))
        for first in range(0, self.tiles, self.chunk):
            self.execution.run(bound, first, min(self.chunk, self.tiles - first), [place])
        if place is not result:
            result[:] = place
