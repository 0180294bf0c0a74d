"""Objective and Point: loss, gradient, H(w)v and vᵀ∇H(w)v of a network on a batch.

Order k of a pass reads orders ≤ k and writes order k. So order 0 runs once per point and is kept; every Hessian-vector
product is one pass of order 1; vᵀ∇H v is one pass of order 2 on top of the last pass of order 1. Only this file knows
which orders a question needs.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rop import devices
from rop.devices import Block, Orders, Space, Vector, check_device, on_device
from rop.devices.cpu.workspace import DEFAULT_MEMORY, Data, Workspace, engine_lock, lane_samples
from rop.errors import ArgumentError, ArgumentTypeError
from rop.graph import Graph
from rop.layers._arguments import as_array, check_bool, check_dtype, check_int
from rop.layers.base import Shape, batched
from rop.layers.loss import Loss
from rop.lowering import check_kinds, lower

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

State = Mapping[str, np.ndarray]
VALUE, FIRST, SECOND = (0, 0), (1, 0), (2, 0)  # (order, direction) of the passes at a point
FACTORIAL = (1.0, 1.0, 2.0)  # Taylor coefficients inside, derivatives outside
PREDICT_BATCH = 4096  # samples that go through the net together in predict


class Jet(NamedTuple):
    """f and its derivatives at w along v."""

    loss: float
    grad: Vector  # ∇f(w)
    hvp: Vector  # H(w) v
    r2: Vector  # vᵀ ∇H(w) v


class Taylor(NamedTuple):
    """r ↦ f(w + r v) at r = 0: its value and first two derivatives, as the loss node reports them."""

    value: float
    slope: float  # ⟨∇f(w), v⟩
    curvature: float  # vᵀ H(w) v


class Objective:
    """f(w) = loss(net(x; w), y) on one batch, with exact derivatives.

    Args:
        net: a Sequential or Graph.
        loss: a loss such as CrossEntropy().
        x: (batch, ...) floats.
        y: targets as the loss wants them.
        dtype: precision of all computation and of the results, float32 or float64.
        training: whether batchnorm uses the statistics of the batch (else those in ``state``).
        state: running statistics for evaluation mode, by default ``net.init_state()``.
        device: "cpu", "cuda", or "auto": a GPU if one can be used. With a GPU, w and v may be arrays in its memory (of
            any package that has ``__cuda_array_interface__``); results are where v is, the gradient where w is.
        check_finite: refuse NaN and Inf in x, w and v.
        memory_limit: bytes of activations kept between passes; what does not fit is computed again, with the same bits.

    >>> import numpy as np, rop
    >>> net = rop.Sequential(rop.Linear(3, 4), rop.Tanh(), rop.Linear(4, 2))
    >>> x, y = np.ones((5, 3)), np.array([0, 1, 0, 1, 1])
    >>> f = rop.Objective(net, rop.CrossEntropy(), x, y, dtype=np.float64)
    >>> w = net.init(seed=0, dtype=np.float64)
    >>> p, v = f.at(w), np.ones(net.size)
    >>> bool(np.isclose(v @ p.hvp(v), p.taylor(v).curvature))
    True
    """

    def __init__(
        self,
        net: Graph,
        loss: Loss,
        x: Any,
        y: Any,
        *,
        dtype: Any = np.float32,
        training: bool = True,
        state: State | None = None,
        device: str = "cpu",
        check_finite: bool = True,
        memory_limit: int | None = None,
    ):
        check_problem("Objective", net, loss)
        self.net, self.loss = net, loss
        self.dtype = np.dtype(check_dtype("Objective", dtype))
        self.training = check_bool("Objective", "training", training)
        self.device = check_device("Objective", device)
        self.check_finite = check_bool("Objective", "check_finite", check_finite)
        limit = DEFAULT_MEMORY if memory_limit is None else memory_limit
        self.memory_limit = check_int("Objective", "memory_limit", limit, maximum=sys.maxsize)
        self._state = None if self.training else check_state(net, state, self.dtype, "Objective")
        self._workspaces: OrderedDict[Any, Space] = OrderedDict()
        self._bind(x, y)

    def _bind(self, x: Any, y: Any) -> None:
        """Checks a batch and finds its workspace."""
        x = check_data(x, self.dtype, self.check_finite)
        batch, shape = len(x), x.shape[1:]
        shapes = self.net.shapes(shape)
        if self.training:
            check_statistics(self.net, shapes, batch)
        targets = self.loss.targets(y, batch, shapes[self.net.output], self.dtype)
        self._workspace = self._workspace_for(batch, shape)
        scale = 1.0 / targets.total if self.loss.reduction == "mean" else 1.0
        samples = lane_samples(batch, self._workspace.lanes)
        self._data = Data(x.reshape(batch, -1), targets, scale, samples)
        self._shape = shape

    def _workspace_for(self, batch: int, shape: Shape) -> Space:
        key = batch, shape
        if key not in self._workspaces:
            self._workspaces[key] = devices.workspace(
                self.device, self.net, shape, self.training, self.loss, self.dtype, batch, self.memory_limit
            )
            if len(self._workspaces) > 4:  # batch sizes that are not in use any more give way
                self._workspaces.popitem(last=False)
        self._workspaces.move_to_end(key)
        return self._workspaces[key]

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the workspaces behind: they hold addresses."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_workspace", "_workspaces")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        check_device("Objective", self.device)  # it may have come from another machine
        self._workspaces = OrderedDict()
        self._workspace = self._workspace_for(len(self._data.x), self._shape)

    def with_data(self, x: Any, y: Any) -> Objective:
        """The same net, loss and settings on another batch; buffers are shared with this objective."""
        other = object.__new__(Objective)
        other.__dict__.update(self.__dict__)
        other._bind(x, y)
        return other

    # ------------------------------------------------------------------------------------------------------ evaluation
    def at(self, w: Any) -> Point:
        """Loss and gradient at w: one forward and backward pass, which the point keeps."""
        return Point(self, w)

    def jet(self, w: Any, v: Any) -> Jet:
        """(loss, grad, hvp, r2) at w along v, in one run over the batch.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(2, 1)), rop.MSE(), np.eye(2), np.ones((2, 1)))
        >>> f.jet(np.zeros(3, "f4"), np.ones(3, "f4")).hvp
        array([2., 2., 4.], dtype=float32)
        """
        w, v = self._vector("w", w), self._vector("v", v)
        with engine_lock():
            space = self._ready(w)
            self._set_direction(0, v)
            grad, hvp, r2 = space.run((VALUE, FIRST, SECOND), (0, 1, 2))
            space.release("w")
            space.release("v0")
            space.scale(r2, FACTORIAL[2])
            return Jet(self._energy(0), space.given(grad, w), space.given(hvp, v), space.given(r2, v))

    def _ready(self, w: Vector) -> Space:
        """The workspace with this batch and these parameters in place, and nothing computed yet. w is borrowed."""
        space = self._workspace
        space.bind(self._data)
        if self._state is not None:
            space.put_state(self._state)
        space.forget()
        self._place("w", "w", w)
        return space

    def _set_direction(self, index: int, v: Vector) -> None:
        """Puts a direction in place, borrowed."""
        self._workspace.ensure_direction(index)
        self._workspace.has_direction = False
        self._place("v", f"v{index}", v)

    def _place(self, name: str, place: str, vector: Vector) -> None:
        """Lends a vector of parameters to the workspace."""
        if not self._workspace.borrow(place, vector, self.check_finite) and self.check_finite:
            raise ArgumentError(
                f"{name}: expected finite numbers, got NaN or Inf (in {self.dtype}); "
                "check_finite=False switches the check off"
            )

    def _energy(self, k: int) -> float:
        return FACTORIAL[k] * self._workspace.energy(k)

    def _floats(self, name: str, value: Any) -> Any:
        """An array of float32 or float64: the user's own if it is in the memory of the objective's device."""
        if self.device != "cpu" and on_device(value):
            return self._workspace.vector(name, value)
        return as_floats(name, value)

    def _vector(self, name: str, value: Any) -> Vector:
        """A vector of the parameters' length in the objective's precision."""
        array = self._floats(name, value)
        if array.shape != (self.net.size,):
            raise ArgumentError(
                f"{name}: expected a vector of shape ({self.net.size},), the number of parameters, got {array.shape}"
            )
        if not isinstance(array, np.ndarray) or (array.dtype == self.dtype and array.flags.c_contiguous):
            return array
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, self.dtype)


class Point:
    """An objective at one w. The activations of order 0 are kept in the objective's workspace; if another point has
    taken their place they are computed again."""

    def __init__(self, objective: Objective, w: Any):
        if not isinstance(objective, Objective):
            raise ArgumentTypeError(
                f"Point: expected a rop.Objective, got {type(objective).__name__}; objective.at(w) makes a point"
            )
        w = objective._vector("w", w)
        self._f, self.w = objective, w
        self._token = object()  # marks the workspace as holding this point's order 0
        with engine_lock():
            space = objective._workspace
            self._grad = space.given(self._evaluate(), w)
            self.w = space.keep(w)  # from here on, so that the user's may change
            if isinstance(self.w, np.ndarray):
                self.w.flags.writeable = False
            space.settle("w", self.w)
            self.loss: float = objective._energy(0)
            self._batch_stats = batch_statistics(objective._workspace) if objective.training else {}

    @property
    def grad(self) -> Vector:
        """∇f(w), (n,)."""
        return self._f._workspace.keep(self._grad)

    @property
    def batch_stats(self) -> dict[str, np.ndarray]:
        """Mean and unbiased variance of every batchnorm layer in training mode, under the names of
        ``net.init_state()``: what a running average takes in."""
        return {name: value.copy() for name, value in self._batch_stats.items()}

    def _evaluate(self) -> Vector:
        """Order 0, kept; returns the gradient, in the workspace's memory."""
        space = self._f._ready(self.w)
        (grad,) = space.run((VALUE,), (0,))
        space.owner = self._token
        return grad

    def _space(self) -> Space:
        """The workspace with order 0 of this point in it, as far as it is kept."""
        space = self._f._workspace
        if space.owner is not self._token:
            if space.kept:
                self._evaluate()
            else:
                self._f._ready(self.w)
                space.owner = self._token
        return space

    def hvp(self, v: Any) -> Vector:
        """H(w) v, for a vector (n,) or for the columns of (n, k); a pass of order 1.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((4, 1)), np.ones((4, 1)))
        >>> f.at(np.zeros(2, "f4")).hvp(np.eye(2, dtype="f4"))
        array([[2., 2.],
               [2., 2.]], dtype=float32)
        """
        columns = self._f._floats("v", v)
        if columns.ndim == 2:
            return self._block(columns)
        vector = self._f._vector("v", columns)
        with engine_lock():
            space = self._space()
            self._f._set_direction(0, vector)
            orders = (FIRST,) if space.kept else (VALUE, FIRST)
            (result,) = space.run(orders, (len(orders) - 1,))
            space.settle("v0")
            space.has_direction = True
            return space.given(result, vector)

    def _block(self, columns: Block) -> Block:
        if columns.shape[0] != self._f.net.size:
            n = self._f.net.size
            raise ArgumentError(
                f"v: expected shape ({n},) or ({n}, k), n = {n} being the number of parameters, got {columns.shape}"
            )
        with engine_lock():
            space = self._space()
            rows = space.rows_of(columns)
            result, places = space.new_block(len(rows), columns)
            for start in range(0, len(rows), space.together):
                part = slice(start, start + space.together)
                self._products(rows[part], places[part])
            return result

    def _products(self, rows: Sequence[Vector], places: list[Vector]) -> None:
        """H times a few vectors in one pass: what a part of the batch needs of order 0 is fetched or computed once for
        all of them."""
        space = self._space()
        for i, row in enumerate(rows):
            self._f._set_direction(i, row)
        orders = (() if space.kept else (VALUE,)) + tuple((1, i) for i in range(len(rows)))
        space.run(orders, tuple(range(len(orders) - len(rows), len(orders))), into=places)
        for i in range(len(rows)):
            space.release(f"v{i}")

    def r2(self, v: Any) -> Vector:
        """vᵀ ∇H(w) v, a vector (n,): a pass of order 2, on top of the order-1 pass of the last hvp if that was for an
        equal v.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((4, 1)), np.ones((4, 1)))
        >>> f.at(np.zeros(2, "f4")).r2(np.ones(2, "f4"))         # a quadratic has no third derivative
        array([0., 0.], dtype=float32)
        """
        vector = self._f._vector("v", v)
        with engine_lock():
            return self._f._workspace.given(self._third(vector), vector)

    def _third(self, vector: Vector) -> Vector:
        space = self._space()
        known = space.has_direction and space.holds("v0", vector)
        orders: Orders = (SECOND,)
        if not known or space.kept < 3:
            self._f._set_direction(0, vector)
            orders = (FIRST, SECOND) if space.kept else (VALUE, FIRST, SECOND)
        (result,) = space.run(orders, (len(orders) - 1,))
        space.settle("v0")
        space.has_direction = True
        space.scale(result, FACTORIAL[2])
        return result

    def taylor(self, v: Any) -> Taylor:
        """f(w + r v) at r = 0: value, slope ⟨∇f, v⟩ and curvature vᵀHv, from the forward passes alone.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((4, 1)), np.ones((4, 1)))
        >>> f.at(np.zeros(2, "f4")).taylor(np.ones(2, "f4"))     # (2 r − 1)²
        Taylor(value=1.0, slope=-4.0, curvature=8.0)
        """
        vector = self._f._vector("v", v)
        with engine_lock():
            self._third(vector)
            return Taylor(self.loss, self._f._energy(1), self._f._energy(2))

    def hessian(self) -> LinearOperator:
        """H(w) as a scipy.sparse.linalg.LinearOperator, symmetric, (n, n), in the objective's precision.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((4, 1)), np.ones((4, 1)))
        >>> H = f.at(np.zeros(2, "f4")).hessian()
        >>> H @ np.ones(2)
        array([4., 4.], dtype=float32)
        """
        from rop.eigen import Hessian  # SciPy is loaded only where it is asked for

        return Hessian(self)


def batch_statistics(space: Space) -> dict[str, np.ndarray]:
    """Mean and unbiased variance of the last pass, under the names of ``net.init_state()``."""
    result = {}
    for name, mean, variance, count in space.statistics():
        result[f"{name}.running_mean"] = mean.copy()
        result[f"{name}.running_var"] = variance * count / (count - 1)
    return result


def predict(net: Graph, w: Any, x: Any, state: State | None = None) -> np.ndarray:
    """Outputs (batch, ...) of a net in evaluation mode; the precision is that of w."""
    check_net("predict", net)
    vector = as_floats("w", w)
    dtype = vector.dtype.newbyteorder("=")
    if vector.shape != (net.size,):
        raise ArgumentError(
            f"w: expected a vector of shape ({net.size},), the number of parameters, got {vector.shape}"
        )
    if not np.isfinite(vector).all():
        raise ArgumentError("w: expected finite numbers, got NaN or Inf")
    x = check_data(x, dtype, check_finite=True)
    shapes = net.shapes(x.shape[1:])
    frozen = check_state(net, state, dtype, "predict")
    result = np.empty((len(x), math.prod(shapes[net.output])), dtype)
    with engine_lock():
        for start in range(0, len(x), PREDICT_BATCH):
            part = x[start : start + PREDICT_BATCH]
            space = _forward_space(net, x.shape[1:], len(part), dtype)
            space.array("w")[: net.size] = vector
            space.put_state(frozen)
            data = Data(part.reshape(len(part), -1), None, 1.0, lane_samples(len(part), space.lanes))
            space.outputs(data, result[start : start + len(part)])
    return result.reshape(len(x), *shapes[net.output])


_forward_spaces: OrderedDict[Any, Workspace] = OrderedDict()  # the last ones: a whole batch and a remainder


def _forward_space(net: Graph, shape: Shape, batch: int, dtype: np.dtype) -> Workspace:
    """A workspace for the forward pass."""
    key = net, shape, batch, dtype
    if key not in _forward_spaces:
        _forward_spaces[key] = Workspace(lower(net, shape, False, None, dtype), batch, 0)
        if len(_forward_spaces) > 2:
            _forward_spaces.popitem(last=False)
    return _forward_spaces[key]


# ------------------------------------------------------------------------------------------------- checks at the door
def check_net(owner: str, net: Any) -> None:
    """A net that the engine has formulas for."""
    if not isinstance(net, Graph):
        raise ArgumentTypeError(f"{owner}: expected net to be a rop.Sequential or rop.Graph, got {type(net).__name__}")
    check_kinds(net)


def check_problem(owner: str, net: Any, loss: Any) -> None:
    """A net and a loss that the engine has formulas for."""
    check_net(owner, net)
    if not isinstance(loss, Loss):
        raise ArgumentTypeError(f"{owner}: expected a loss such as rop.CrossEntropy(), got {type(loss).__name__}")
    check_kinds(net, loss)


def as_floats(name: str, value: Any) -> np.ndarray:
    """An array of float32 or float64."""
    array = as_array(name, value, "an array of float32 or float64")
    if array.dtype.kind != "f" or array.itemsize not in (4, 8):
        raise ArgumentTypeError(
            f"{name}: expected an array of float32 or float64, got {array.dtype}; convert it with "
            f"np.asarray({name}, dtype=np.float32)"
        )
    return array


def check_data(x: Any, dtype: np.dtype, check_finite: bool) -> np.ndarray:
    """The inputs of a batch, contiguous and in the precision of the computation."""
    array = as_floats("x", x)
    if array.ndim < 2:
        raise ArgumentError(
            f"x: expected (batch, ...) with at least two axes, got shape {array.shape}; one sample is x[None]"
        )
    if array.size == 0:
        raise ArgumentError(f"x: expected at least one sample, got an empty batch of shape {array.shape}")
    with np.errstate(over="ignore"):
        array = np.array(array, dtype=dtype, order="C")
    if check_finite and not np.isfinite(array).all():
        raise ArgumentError("x: expected finite numbers, got NaN or Inf; check_finite=False switches the check off")
    return array


def check_statistics(net: Graph, shapes: Mapping[Any, Shape], batch: int) -> None:
    """Batch statistics of a single value have no variance."""
    for node in net.nodes:
        layer = node.layer
        if layer is not None and layer.initial_state() and batch * math.prod(shapes[node][1:]) == 1:
            raise ArgumentError(
                f"{net.where(node)}: expected more than one value per channel for batch statistics, "
                f"got one sample of shape {batched(shapes[node])}; use a larger batch or "
                "training=False"
            )


def check_state(net: Graph, state: Any, dtype: np.dtype, owner: str) -> dict[str, np.ndarray]:
    """Running statistics for every batchnorm layer, in the precision of the computation."""
    expected = net.init_state(dtype)
    if not expected:
        return {}
    if state is None:
        return expected
    if not isinstance(state, Mapping):
        raise ArgumentTypeError(f"{owner}: expected state as a dict like net.init_state(), got {type(state).__name__}")
    if set(state) != set(expected):
        raise ArgumentError(
            f"{owner}: expected state with the keys {sorted(expected)}, got {sorted(state)}; see net.init_state()"
        )
    result = {}
    for key, like in expected.items():
        value = as_floats(f"state[{key!r}]", state[key])
        if value.shape != like.shape:
            raise ArgumentError(f"{owner}: state[{key!r}]: expected shape {like.shape}, got {value.shape}")
        wrong = ~np.isfinite(value) | (value < 0 if key.endswith("var") else False)
        if wrong.any():
            raise ArgumentError(
                f"{owner}: state[{key!r}]: expected finite numbers, variances of at least 0, got {value[wrong][0]:g}"
            )
        result[key] = value.astype(dtype)
    return result
