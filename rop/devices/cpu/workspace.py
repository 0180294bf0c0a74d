"""The memory of one network on batches of one size, and the passes bound to it.

A batch of B samples is cut into tiles of T lanes, tiles into chunks. A chunk's partial sums are added up in the order
of its tiles, chunks are added up in their order in float64: T and the chunk depend on the network and on B only, never
on threads or on the memory limit, so neither changes a bit of the result.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np

from rop.devices import Orders
from rop.devices.cpu import guard
from rop.devices.cpu.code import ORDERS, Bound, Space
from rop.errors import ArgumentError
from rop.graph import Graph
from rop.kernels.cpu import batchnorm
from rop.kernels.cpu.gemm import SPAN
from rop.kernels.cpu.interpreter import runner
from rop.kernels.cpu.transfer import Transfer
from rop.kernels.warm import ensure_compiled
from rop.layers.base import Shape
from rop.layers.loss import Loss, Targets
from rop.lowering import Plan, emit_outputs, emit_pass, lower, result_space

DEFAULT_MEMORY = 1 << 30  # bytes of activations that are kept between passes
LANES = (16, 32, 64)  # of a tile; a batch that is longer than one of them may have it
CHUNK_BYTES = 32 << 20  # what a chunk's planes and partial sums should not exceed …
CHUNK_TILES = 64  # … nor its number of tiles
CHUNK_LEAST = 4  # … but at least so many tiles, for threads to share
BLOCK_OF_VECTORS = 8  # directions that go through the network together
LONG_RESULT = 1 << 16  # numbers from which results are written where the user gets them
SHELF = 8  # such arrays that are kept for another time, …
SHELF_BYTES = 64 << 20  # … as long as they do not take more than this
LONG_RUN = 5e10  # instructions times bytes: beyond this a call may take a tenth of a second

_lock = threading.RLock()  # Numba's threading layers must not be entered twice at the same time
_at_home = True


def _after_fork() -> None:
    """The child has no worker threads and may have inherited a held lock: it runs serially, with a new lock."""
    global _lock, _at_home
    _lock, _at_home = threading.RLock(), False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def in_home_process() -> bool:
    """Whether Numba's worker threads may be used: not after a fork, which does not take them along."""
    return _at_home


def engine_lock() -> threading.RLock:
    return _lock


def choose_lanes(plan: Plan, batch: int) -> int:
    """Tile size. Images fill the cache with few lanes: what a micro-kernel takes at a time; of small vectors a tile
    takes more, as long as several tiles are left for threads."""
    least = LANES[0]
    if any(value.pixels > 1 for value in plan.values.values()):
        return max(least, SPAN // plan.itemsize) if batch > least else least
    return next((lanes for lanes in reversed(LANES) if batch > lanes), least)


def orders_kept(plan: Plan, tile_bytes: int, tiles: int, chunk: int, batch: int, limit: int) -> int:
    """How many orders are kept of the whole batch between passes: 3, 1 (order 0 only) or 0 (everything is computed
    again); ``tile_bytes`` is what one order of a tile takes, ``chunk`` how many tiles are computed together."""
    if tiles > chunk:
        return next((orders for orders in (3, 1) if orders * tile_bytes * tiles <= limit), 0)
    if plan.coupled and 3 * tile_bytes * tiles > limit:
        layer = plan.normalisations[0].layer
        raise ArgumentError(
            f"layer {plan.graph.name_of(layer)} ({layer.describe()}): batch statistics need all activations at once, "
            f"{3 * tile_bytes * tiles:,} bytes for {batch:,} samples, got a memory_limit of {limit:,}; use smaller "
            "batches, a larger memory_limit, or training=False"
        )
    return 3


def aligned(count: int, dtype: Any) -> np.ndarray:
    """Zeros that start at a cache line."""
    count = max(count, 1)
    return at_cache_line(np.zeros(room(count, dtype), np.uint8), count, dtype)


def room(count: int, dtype: Any) -> int:
    """Bytes in which an array can start at a cache line, with guard zones around it."""
    return count * np.dtype(dtype).itemsize + 64 + 2 * guard.BYTES


def at_cache_line(raw: np.ndarray, count: int, dtype: Any) -> np.ndarray:
    """``count`` numbers in raw bytes that start at a cache line."""
    start = -raw.ctypes.data % 64 + guard.BYTES
    return raw[start : start + count * np.dtype(dtype).itemsize].view(dtype)


class Shelf:
    """Long result arrays that are taken again once nobody holds them: the pages of a new one cost as much as filling
    it. What is given away is a view, so an array on the shelf has no other holder as soon as the view is gone."""

    def __init__(self, count: int, dtype: Any):
        self._count, self._dtype = count, dtype
        self._most = max(2, min(SHELF, SHELF_BYTES // (count * np.dtype(dtype).itemsize)))
        self._arrays = [np.zeros(0, np.uint8)]  # the first one is never given away: it shows the count …
        (self._idle,) = (sys.getrefcount(array) for array in self._arrays)  # … of an array that nobody holds

    def take(self) -> np.ndarray:
        free = [i for i, n in enumerate(sys.getrefcount(array) for array in self._arrays) if i > 0 and n == self._idle]
        if free:
            return self._view(self._arrays[free[0]])
        made = np.empty(room(self._count, self._dtype), np.uint8)
        if len(self._arrays) <= self._most:
            self._arrays.append(made)
        return self._view(made)

    def _view(self, raw: np.ndarray) -> np.ndarray:
        return at_cache_line(raw, self._count, self._dtype)


@dataclass(eq=False)
class Data:
    """One batch, in the form in which kernels read it."""

    x: np.ndarray  # (batch, features)
    targets: Targets | None
    scale: float
    samples: np.ndarray  # (tiles · lanes,) sample of each lane; ~i is a copy of i that does not count

    def addresses(self, outputs: np.ndarray | None = None) -> dict[str, int]:
        def address(array: np.ndarray | None) -> int:
            return 0 if array is None else int(array.ctypes.data)

        targets = self.targets
        return {
            "x": address(self.x),
            "samples": address(self.samples),
            "outputs": address(outputs),
            "labels": address(targets.labels if targets else None),
            "dense": address(targets.dense if targets else None),
            "weight": address(targets.weight if targets else None),
        }


@dataclass(eq=False)
class Pass:
    """A pass bound to its buffers, where its results are, and the batch whose addresses it holds."""

    bound: Bound
    results: list[np.ndarray]
    data: Data | None = None
    places: dict[str, int] = field(default_factory=dict)  # addresses of vectors that it reads elsewhere


def lane_samples(batch: int, lanes: int) -> np.ndarray:
    """Samples 0, 1, …, padded to whole tiles with copies of the last one."""
    samples = np.full(-(-batch // lanes) * lanes, ~(batch - 1), np.int64)
    samples[:batch] = np.arange(batch)
    return samples


class Workspace:
    """Buffers for one plan and one batch size; at most one point's activations are in them at a time."""

    def __init__(self, plan: Plan, batch: int, memory_limit: int, one_chunk: bool = False):
        self.plan, self.batch = plan, batch
        self.dtype = plan.dtype
        if not plan.lanes:
            plan.lanes = choose_lanes(plan, batch)
        self.lanes = plan.lanes
        self.tiles = -(-batch // plan.lanes)
        self.stride = -(-max(plan.plane_rows.values()) * plan.lane_bytes // 64) * 64 + 64
        self.chunk = self.tiles if one_chunk else self._chunk()
        self.kept = orders_kept(plan, self.stride, self.tiles, self.chunk, batch, memory_limit)
        self.owner: object = None  # token of the point whose order 0 is in the planes
        self.has_direction = False  # whether order 1 of the direction in v0 is in the planes
        self._data: Data | None = None
        self._passes: dict[tuple[Orders, tuple[int, ...]], Pass] = {}
        self._shelves: dict[int, Shelf] = {}
        self._lent: dict[str, np.ndarray] = {}  # long vectors that passes read where they are,
        self._places: dict[str, int] = {}  # and where passes find each vector that ever was one of them
        self._cancel = np.zeros(1, np.int64)
        self.cancel_address = int(self._cancel.ctypes.data)
        ensure_compiled(self.dtype)
        self._transfer = Transfer(self.dtype)
        self._allocate()

    @classmethod
    def of(
        cls, net: Graph, shape: Shape, training: bool, loss: Loss, dtype: Any, batch: int, memory_limit: int
    ) -> Workspace:
        """The workspace of a network."""
        return cls(lower(net, shape, training, loss, dtype), batch, memory_limit)

    def _chunk(self) -> int:
        if self.plan.coupled:
            return self.tiles
        per_tile = 3 * (self.stride + self.plan.partial_size * self.plan.itemsize)
        return min(self.tiles, max(CHUNK_LEAST, min(CHUNK_TILES, CHUNK_BYTES // per_tile)))

    def _allocate(self) -> None:
        plan, dtype, item = self.plan, self.dtype, self.plan.itemsize
        self._arrays: dict[str, np.ndarray] = {}
        self._guards = guard.Guards()
        self._spaces: dict[str, Space] = {"number": Space(0)}
        for k in ORDERS:
            whole = k < self.kept and self.tiles > self.chunk
            count = (self.tiles if whole else self.chunk) * self.stride // item
            self._space(f"plane{k}", count, dtype, self.stride, whole)
            self._space(f"energy{k}", self.tiles, np.float64, 8, self.tiles > self.chunk)
        self.partial_step = -(-plan.partial_size * item // 64) * 64 + 64
        sums_step = 8 * (plan.sizes["sums"] + 8)
        self._spaces["partial_step"] = Space(self.partial_step)
        self._spaces["sums_step"] = Space(sums_step)
        self._space("sums", self.chunk * sums_step // 8, np.float64, sums_step)
        self._space("scratch", self.chunk * plan.scratch_rows * plan.lanes, dtype, plan.scratch_rows * plan.lane_bytes)
        for name, kind in (("batch", dtype), ("totals", np.float64), ("state", dtype)):
            self._space(name, plan.sizes[name], kind)
        self._space("zeros", plan.zero_rows * plan.lanes, dtype)
        self._space("ones", max((n.channels for n in plan.normalisations), default=1), dtype)
        self._arrays["ones"][:] = 1
        self._space("tile_count", 1, np.int64)
        self._space("scale", 1, np.float64)
        tile = np.arange(self.chunk, dtype=np.int64)
        self._space("tile_segments", 3 * self.chunk, np.int64)
        self._arrays["tile_segments"][:] = np.stack(
            [tile * self.stride // item, tile * self.stride, np.full_like(tile, plan.lanes)], axis=1
        ).ravel()
        for name in ("x", "samples", "labels", "dense", "weight", "outputs"):
            step = {"samples": 8 * plan.lanes, "outputs": plan.output.rows * plan.lane_bytes}.get(name, 0)
            self._spaces[name] = Space(0, step, True)
        self._for_parameters("w", 0)

    def _space(self, name: str, count: int, dtype: Any, step: int = 0, whole: bool = False) -> np.ndarray:
        array = aligned(count, dtype)
        self._arrays[name] = array
        self._spaces[name] = Space(int(array.ctypes.data), step, whole)
        if guard.ACTIVE:
            self._guard(name, array, step)
        return array

    def _guard(self, name: str, array: np.ndarray, step: int) -> None:
        """Watches the guard zones around a space and between its pieces, those of each tile if it has a step."""
        self.watch(name, array)
        plan, kind = self.plan, name.rstrip("0123456789")
        if name == "zeros":
            self._guards.constant(name, array)
        gaps, unit = plan.gaps.get(name if kind == "plane" else kind, []), plan.lanes if kind == "plane" else 1
        used = {"plane": max(plan.plane_rows.values()), "sums": plan.sizes["sums"]}.get(kind)
        if kind == "partial":
            gaps, used = plan.partial_gaps(), plan.partial_size
        tiles = array.reshape(-1, step // array.itemsize) if step and used is not None else array[None]
        if used is not None:
            gaps = [*gaps, (used, tiles.shape[1] // unit - used)]
        for start, length in gaps:
            self._guards.gap(f"in {name} after {start}", tiles[:, start * unit : (start + length) * unit])

    def watch(self, name: str, array: np.ndarray) -> None:
        """Lets the guard mode look after the gaps around an array of ``aligned``."""
        if guard.ACTIVE:
            self._guards.watch(guard.edges(name, array))

    def _for_parameters(self, name: str, version: int) -> None:
        """Room for a vector of parameters, w or a direction, for its panels and for what batchnorm makes of it."""
        n = self.plan.graph.size
        self._space(name, n, self.dtype)
        self._space(f"packed{version}", self.plan.sizes["packed"], self.dtype)
        self._space(f"panels{version}", self.plan.sizes["panels"], self.dtype)
        self._space(f"channels{version}", self.plan.sizes["channels"], self.dtype)

    def array(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def adopt(self, name: str, vector: np.ndarray, check: bool = True) -> bool:
        """Copies a vector to the start of a buffer; returns whether all of it is finite, which costs nothing here."""
        self.release(name)
        return self._transfer.adopt(self._arrays[name], vector, in_home_process())

    def borrow(self, name: str, vector: np.ndarray, check: bool = True) -> bool:
        """Long vectors stay where they are: a copy costs twice, because its cache lines are in the core that wrote
        them, while those of a vector that nobody writes are in both."""
        if vector.size < LONG_RESULT:
            return self.adopt(name, vector)
        self._lent[name], self._places[name] = vector, int(vector.ctypes.data)
        return not check or self._transfer.finite(vector, in_home_process())

    def settle(self, name: str, copy: np.ndarray | None = None) -> None:
        if name in self._lent:
            if copy is None:
                self.adopt(name, self._lent[name])
            else:
                self.borrow(name, copy, check=False)

    def release(self, name: str) -> None:
        if self._lent.pop(name, None) is not None:
            self._places[name] = self.address(name)

    def holds(self, name: str, vector: np.ndarray) -> bool:
        return np.array_equal(self._arrays[name][: vector.size], vector)

    def energy(self, k: int) -> float:
        return math.fsum(self._arrays[f"energy{k}"][: self.tiles].tolist())

    def statistics(self) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """Name, mean, variance and number of values per channel of every batchnorm layer."""
        for operation in self.plan.normalisations:
            c = operation.channels
            table = self._arrays["channels0"][operation.tables[0] :][: batchnorm.FIELDS * c].reshape(-1, c)
            yield (
                self.plan.graph.name_of(operation.layer),
                table[batchnorm.MEAN],
                table[batchnorm.VARIANCE],
                table[batchnorm.COUNT],
            )

    def order_zero(self) -> Iterator[tuple[int, np.ndarray]]:
        """Number of the first tile, and order 0 of tiles (tiles, words): all at once if they are kept, else computed
        again chunk by chunk."""
        plane = self._arrays["plane0"].reshape(-1, self.stride // self.dtype.itemsize)
        if self.kept:
            yield 0, plane[: self.tiles]
            return
        ready = self.bound(((0, 0),), (0,))
        for first in range(0, self.tiles, self.chunk):
            tiles = min(self.chunk, self.tiles - first)
            self._execute(ready.bound, first, tiles)
            yield first, plane[:tiles]

    def scale(self, vector: np.ndarray, factor: float) -> None:
        self._transfer.scale(vector, factor, in_home_process())

    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Running statistics for evaluation mode."""
        for operation in self.plan.normalisations:
            name, channels = self.plan.graph.name_of(operation.layer), operation.channels
            place = self._arrays["state"][operation.state : operation.state + 2 * channels]
            place[:channels] = state[f"{name}.running_mean"]
            place[channels:] = state[f"{name}.running_var"]

    def address(self, name: str) -> int:
        return self._spaces[name].address

    def poison(self) -> None:
        """Fills everything that a pass must write before it reads with NaN (for tests)."""
        for name, array in self._arrays.items():
            scratch = name.startswith(("plane", "partial", "packed", "panels", "channels", "out", "energy", "sums"))
            if scratch or name in ("batch", "totals", "scratch"):
                array[:] = np.nan
        self._guards.arm()
        self.forget()

    def forget(self) -> None:
        """What is in the planes belongs to no point any more."""
        self.owner, self.has_direction = None, False

    def fresh(self) -> np.ndarray:
        """An array for a vector of parameters, to give away."""
        n = self.plan.graph.size
        return np.empty(n, self.dtype) if n < LONG_RESULT else self._shelf(n).take()

    def _shelf(self, count: int) -> Shelf:
        if count not in self._shelves:
            self._shelves[count] = Shelf(count, self.dtype)
        return self._shelves[count]

    # ------------------------------------------------------------------------------------------ what users give and get
    def keep(self, w: np.ndarray) -> np.ndarray:
        copy = self.fresh()
        self._transfer.adopt(copy, w, in_home_process())
        return copy

    def vector(self, name: str, value: Any) -> np.ndarray:
        raise NotImplementedError("the engine makes NumPy arrays of everything else")

    def given(self, result: np.ndarray, like: np.ndarray) -> np.ndarray:
        """Results are fresh arrays already."""
        return result

    def rows_of(self, columns: np.ndarray) -> np.ndarray:
        n, k = columns.shape
        with np.errstate(over="ignore"):
            if columns.flags.f_contiguous:
                return np.ascontiguousarray(columns.T, self.dtype)
            columns = np.ascontiguousarray(columns, self.dtype)
        rows = self._rows(k)[:, :n]
        self._transfer.turn(rows, columns, in_home_process())
        return rows

    def _rows(self, k: int) -> np.ndarray:
        """k vectors in rows of whole cache lines, with a guard zone between them; long ones start at a cache line."""
        n = -(-self.plan.graph.size // 16) * 16 + guard.BYTES // self.dtype.itemsize
        return (self._shelf(k * n).take() if n >= LONG_RESULT else np.empty(k * n, self.dtype)).reshape(k, n)

    def new_block(self, k: int, like: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        rows = self._rows(k)[:, : self.plan.graph.size]
        return rows.T, list(rows)

    # ---------------------------------------------------------------------------------------------------------- passes
    @property
    def together(self) -> int:
        """Long directions go one by one while order 0 of the whole batch is at hand, else chunk by chunk of the batch;
        short ones together, because a pass costs some time in any case."""
        at_hand = self.kept and self.tiles == self.chunk
        return 1 if at_hand and self.plan.graph.size >= LONG_RESULT else BLOCK_OF_VECTORS

    def ensure_direction(self, index: int) -> None:
        """Room for direction number ``index``."""
        if f"v{index}" not in self._arrays:
            self._for_parameters(f"v{index}", 1 + index)

    def bound(self, orders: Orders, results: tuple[int, ...]) -> Pass:
        """A pass ready to run on the current batch."""
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
        code = emit_pass(self.plan, orders, results) if self.plan.gradients else emit_outputs(self.plan)
        n = self.plan.graph.size
        return Pass(Bound(code, self._spaces, self.dtype), [self._arrays[result_space(orders, i)][:n] for i in results])

    def reserve_results(self, orders: Orders, results: tuple[int, ...]) -> None:
        """Room for the results of a pass."""
        slots = 1 if self.plan.coupled or self.plan.has_wide else len(results)
        for slot in range(slots):
            if f"partial{slot}" not in self._arrays:
                self._space(
                    f"partial{slot}",
                    self.chunk * self.partial_step // self.plan.itemsize,
                    self.dtype,
                    self.partial_step,
                )
        for i in results:
            name = result_space(orders, i)
            if name not in self._arrays:
                self._space(name, self.plan.graph.size, self.dtype)

    def bind(self, data: Data) -> None:
        """Makes this batch the one that passes read."""
        if data is not self._data:
            self._data = data
            self.forget()
            self._arrays["scale"][0] = data.scale

    def run(self, orders: Orders, results: tuple[int, ...], into: list[np.ndarray] | None = None) -> list[np.ndarray]:
        """Runs (order, direction) pairs over all tiles; returns the parameter gradients of the positions ``results``
        in Taylor coefficients, as fresh arrays or ``into`` places of ``new_block``."""
        ready = self.bound(orders, results)
        if self.chunk == self.tiles:
            return self._run_at_once(ready, orders, results, into)
        sums = [np.zeros(self.plan.graph.size) for _ in results]
        for first in range(0, self.tiles, self.chunk):
            self._execute(ready.bound, first, min(self.chunk, self.tiles - first))
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
        if n < LONG_RESULT:
            self._execute(ready.bound, 0, self.tiles)
            if into is None:
                return [result.copy() for result in ready.results]
            for place, result in zip(into, ready.results, strict=True):
                place[:n] = result
            return into
        names = [result_space(orders, i) for i in results]
        arrays = [self._shelf(n).take() for _ in names] if into is None else into
        ready.bound.move({name: array.ctypes.data for name, array in zip(names, arrays, strict=True)})
        try:
            self._execute(ready.bound, 0, self.tiles, arrays)
        finally:
            ready.bound.move({name: self.address(name) for name in names})
        return arrays

    def outputs(self, data: Data, result: np.ndarray) -> None:
        """The forward pass alone; result (batch, features) gets the outputs."""
        self.bind(data)
        bound = self.bound(((0, 0),), ()).bound
        place = aligned(result.size, self.dtype).reshape(result.shape) if guard.ACTIVE else result
        bound.move(data.addresses(place))
        for first in range(0, self.tiles, self.chunk):
            self._execute(bound, first, min(self.chunk, self.tiles - first), [place])
        if place is not result:
            result[:] = place

    def _execute(self, bound: Bound, first: int, tiles: int, results: Sequence[np.ndarray] = ()) -> None:
        """Runs a pass over tiles; ``results`` are arrays outside the workspace that it writes to."""
        self._arrays["tile_count"][0] = tiles
        arguments = (*bound.address, tiles, first, self.cancel_address)
        around = [zone for array in results for zone in guard.edges("a result", array)] if guard.ACTIVE else []
        for zone in around:
            zone.fill()
        if len(bound.table) * self.stride * tiles >= LONG_RUN:
            self.call_aside(lambda: runner(in_home_process())(*arguments))
        else:
            parallel = in_home_process() and bound.pace.parallel()
            start = time.perf_counter()
            runner(parallel)(*arguments)
            bound.pace.measured(parallel, time.perf_counter() - start)
        self.check_guards([bound], first, around)

    def check_guards(self, passes: Sequence[Bound], first: int, results: Sequence[guard.Zone] = ()) -> None:
        """In guard mode, compares the canaries after these passes and names the kernel that changed one."""
        if not guard.ACTIVE:
            return
        names = [name for bound in passes for name in bound.names]
        rows = [(bound, row) for bound in passes for row in range(len(bound.names))]

        def run_one(i: int) -> None:
            bound, row = rows[i]
            stage = bound.alone(row)
            runner(False)(
                bound.address[0], stage.ctypes.data, 1, int(self._arrays["tile_count"][0]), first, self.cancel_address
            )

        self._guards.check(names, run_one, results)

    def call_aside(self, function: Callable[[], Any], stop: Callable[[], bool] = lambda: False) -> bool:
        """A long compiled call in a thread of its own, so that Ctrl-C reaches Python and can cancel it; so does
        ``stop``, which is asked now and then. Returns whether the call came to its end."""
        threads = numba.get_num_threads()

        def target() -> None:
            numba.set_num_threads(threads)
            function()

        worker = threading.Thread(target=target, daemon=True)
        worker.start()
        try:
            while worker.is_alive():
                worker.join(0.1)
                if stop():
                    self._cancel_and_wait(worker)
                    return False
        except BaseException:
            self._cancel_and_wait(worker)
            raise
        return True

    def _cancel_and_wait(self, worker: threading.Thread) -> None:
        self._cancel[0] = 1
        worker.join()
        self._cancel[0] = 0
        self.forget()
