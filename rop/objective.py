"""Objective and Point: loss, gradient, H(w)v and vᵀ∇H(w)v of a network on a batch.

An objective asks its device's workspace one question: evaluate these orders at this position along this direction.
Order 0 runs once per point and stays resident; every Hessian-vector product is one pass of order 1; vᵀ∇H v is one pass
of order 2 on top of the last pass of order 1.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rop import devices
from rop.arguments import check_bool, check_choice, check_dtype, check_int
from rop.devices import LAYOUTS, check_device, on_device
from rop.devices.batch import Data, lane_samples
from rop.devices.lock import engine_lock
from rop.devices.workspace import Block, Gram, Position, Vector, Workspace
from rop.errors import ArgumentError, ArgumentTypeError
from rop.graph import Graph
from rop.inputs import as_floats, check_data, check_problem, check_statistics, objective_state
from rop.layers.base import Shape
from rop.layers.loss import Loss, Targets
from rop.tensors import giver, is_torchs

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

    from rop.activations import Activations

State = Mapping[str, np.ndarray]
TorchLoss = Callable[..., Any]  # a loss module of torch, or its function
DeviceArray = Any  # an array in a GPU's memory, of any package that has __cuda_array_interface__
GRADIENT, PRODUCT, THIRD, ALL = (0,), (1,), (2,), (0, 1, 2)  # the orders that a question asks for


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
        loss: a loss such as CrossEntropy(), or one of torch that rop has (see ``rop.torch.loss_from_torch``).
        x: (batch, ...) floats. Wherever arrays go in, tensors of torch do; results are tensors where v is one, the
            gradient where w is.
        y: targets as the loss wants them.
        dtype: precision of all computation and of the results, float32 or float64; by default that of the module
            that the net comes from, float32 for nets written in rop.
        training: whether batchnorm uses the statistics of the batch (else those in ``state``). By default each layer
            does what it did in the module that the net comes from; in nets written in rop all use the batch's.
        state: running statistics for evaluation mode, by default ``net.init_state()``.
        device: "cpu", "cuda", or "auto": a GPU if one can be used. With a GPU, w and v may be arrays in its memory (of
            any package that has ``__cuda_array_interface__``); results are where v is, the gradient where w is.
        check_finite: refuse NaN and Inf in x, w and v.
        memory_limit: bytes of activations kept between passes; what does not fit is computed again, with the same bits.
            By default half of the machine's memory; batch statistics, which need all activations at once, may take all.
        layout: how images lie in the CPU's memory, "samples" side by side or "pixels"; by default the one that needs
            less work for this net and batch. Results differ by rounding only.
        winograd: whether convolutions of 3×3 may be computed by Winograd's algorithm; off, all sums are direct.
        hold_fixed: whether parameters that the module holds fixed (``requires_grad=False``, see ``net.fixed``) are
            constants of f. v counts as zero there, and so do gradient, H v and vᵀ∇H v.

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
        loss: Loss | TorchLoss,
        x: ArrayLike,
        y: ArrayLike,
        *,
        dtype: DTypeLike | None = None,
        training: bool | None = None,
        state: State | None = None,
        device: str = "cpu",
        check_finite: bool = True,
        memory_limit: int | None = None,
        layout: str | None = None,
        winograd: bool = True,
        hold_fixed: bool = True,
    ):
        own = _own_loss(loss)
        check_problem("Objective", net, own)
        self.net, self.loss = net, own
        self.dtype = np.dtype(check_dtype("Objective", (net.dtype or np.float32) if dtype is None else dtype))
        self.training = None if training is None else check_bool("Objective", "training", training)
        self.device = check_device("Objective", device)
        self.check_finite = check_bool("Objective", "check_finite", check_finite)
        if memory_limit is not None:
            check_int("Objective", "memory_limit", memory_limit, maximum=sys.maxsize)
        self.memory_limit = memory_limit
        if layout is not None:
            check_choice("Objective", "layout", layout, LAYOUTS)
        self.layout = layout
        self.winograd = check_bool("Objective", "winograd", winograd)
        self.hold_fixed = check_bool("Objective", "hold_fixed", hold_fixed)
        self.constants = constants(net) if self.hold_fixed else ()
        self._state = objective_state(net, state, self.training, self.dtype)
        self._workspaces: OrderedDict[tuple[int, Shape], Workspace] = OrderedDict()
        self._bind(x, y)

    def _bind(self, x: ArrayLike, y: ArrayLike) -> None:
        """Checks a batch and finds its workspace."""
        x = check_data(x, self.dtype, self.check_finite)
        batch, shape = len(x), x.shape[1:]
        shapes = self.net.shapes(shape)
        check_statistics(self.net, shapes, batch, self.training)
        targets = self.loss.targets(y, batch, shapes[self.net.output], self.dtype)
        self._workspace = self._workspace_for(batch, shape)
        samples = lane_samples(batch, self._workspace.lanes)
        self._data = Data(x.reshape(batch, -1), targets, targets.scale(self.loss.reduction), samples)
        self._shape = shape

    def _workspace_for(self, batch: int, shape: Shape) -> Workspace:
        key = batch, shape
        if key not in self._workspaces:
            self._workspaces[key] = devices.make_workspace(
                self.device,
                self.net,
                shape,
                self.training,
                self.loss,
                self.dtype,
                batch,
                self.memory_limit,
                self.layout,
                self.winograd,
            )
            self._workspaces[key].constants = self.constants
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

    def with_data(self, x: ArrayLike, y: ArrayLike) -> Objective:
        """The same net, loss and settings on another batch; buffers are shared with this objective."""
        other = object.__new__(Objective)
        other.__dict__.update(self.__dict__)
        other._bind(x, y)
        return other

    def with_checked(self, x: np.ndarray, targets: Targets) -> Objective:
        """The same for a batch as it is in the objective: contiguous and finite, in its precision, with the targets of
        its loss. For callers that bind many batches of data that they have checked as a whole.

        >>> import numpy as np, rop
        >>> x, y, loss = np.arange(4.0, dtype="f4")[:, None], np.zeros((4, 1)), rop.MSE()
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), loss, x, y)
        >>> f.with_checked(x[2:], loss.targets(y, 4, (1,), np.float32).of(np.array([2, 3]))).at(np.eye(1, 2)[0]).loss
        6.5
        """
        other, workspace = object.__new__(Objective), self._workspace_for(len(x), self._shape)
        other.__dict__.update(self.__dict__)
        other._workspace = workspace
        samples = self._data.samples if workspace is self._workspace else lane_samples(len(x), workspace.lanes)
        other._data = Data(x.reshape(len(x), -1), targets, targets.scale(self.loss.reduction), samples)
        return other

    def with_targets(self, y: ArrayLike, loss: Loss | TorchLoss | None = None) -> Objective:
        """The same net, inputs and settings with other targets, and with another loss if one is given."""
        if loss is None:
            shape = self._workspace.plan.shapes[self.net.output]
            return self.with_checked(self._data.x, self.loss.targets(y, self.batch, shape, self.dtype))
        x = self._data.x.reshape(-1, *self._shape)
        settings: dict[str, Any] = {"training": self.training, "state": self._state, "check_finite": self.check_finite}
        settings |= {"dtype": self.dtype, "device": self.device, "memory_limit": self.memory_limit}
        settings |= {"layout": self.layout, "winograd": self.winograd, "hold_fixed": self.hold_fixed}
        return Objective(self.net, loss, x, y, **settings)

    @property
    def batch(self) -> int:
        """The number of samples."""
        return len(self._data.x)

    @property
    def scale(self) -> float:
        """The factor of the samples' losses in f: 1 for reduction "sum", 1 / (sum of the weights) for "mean", or 0 if
        nothing counts."""
        return self._data.scale

    def sample_weights(self) -> np.ndarray:
        """The weight of each sample in f, (batch,), scale included; of several pixels the mean."""
        assert self._data.targets is not None
        return self.scale * self._data.targets.weight.mean(axis=1).astype(np.float64)

    # ------------------------------------------------------------------------------------------------------ evaluation
    def at(self, w: ArrayLike | DeviceArray) -> Point:
        """Loss and gradient at w: one forward and backward pass, which the point keeps."""
        return Point(self, w)

    def jet(self, w: ArrayLike | DeviceArray, v: ArrayLike | DeviceArray) -> Jet:
        """(loss, grad, hvp, r2) at w along v, in one run over the batch.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(2, 1)), rop.MSE(), np.eye(2), np.ones((2, 1)))
        >>> f.jet(np.zeros(3, "f4"), np.ones(3, "f4")).hvp
        array([2., 2., 4.], dtype=float32)
        """
        given = w, v
        w, v = self._vector("w", w), self._vector("v", v)
        with engine_lock():
            workspace = self._workspace
            grad, hvp, r2 = workspace.evaluate(self._position(w), ALL, v, keep=False)
            loss = workspace.value(0)
        if w is given[0] and v is given[1]:  # arrays, as a rule; what else follows takes longer
            return Jet(loss, grad, hvp, r2)
        like_w, like_v = map(giver, given)
        return Jet(loss, like_w(grad), like_v(hvp), like_v(r2))

    def _position(self, w: Vector) -> Position:
        return Position(self._data, self._state, w, self.check_finite)

    def _floats(self, name: str, value: ArrayLike | DeviceArray) -> Block:
        """An array of float32 or float64: the user's own if it is in the memory of the objective's device."""
        if self.device != "cpu" and on_device(value):
            return self._workspace.vectors.accept(name, value)
        return as_floats(name, value)

    def _vector(self, name: str, value: ArrayLike | DeviceArray) -> Vector:
        """A vector of the parameters' length in the objective's precision."""
        if type(value) is np.ndarray and value.dtype == self.dtype and value.shape == (self.net.size,):
            return value if value.flags.c_contiguous else value.copy()  # without the questions below, which take longer
        array = self._floats(name, value)
        if array.shape != (self.net.size,):
            raise ArgumentError(
                f"{name}: expected a vector of shape ({self.net.size},), the number of parameters, got {array.shape}"
            )
        if not isinstance(array, np.ndarray) or (array.dtype == self.dtype and array.flags.c_contiguous):
            return array
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, self.dtype)


def _own_loss(loss: Any) -> Loss:
    """The loss of rop for one of torch; anything else as it is, to be checked."""
    if not is_torchs(loss):
        return loss
    from rop.torch.losses import loss_from_torch

    return loss_from_torch(loss)


def constants(net: Graph) -> tuple[slice, ...]:
    """The parts of w that the module that the net comes from holds fixed; parts that touch are one."""
    parts: list[slice] = []
    for slot in net.slots:
        if slot.fixed and parts and parts[-1].stop == slot.offset:
            parts[-1] = slice(parts[-1].start, slot.offset + slot.size)
        elif slot.fixed:
            parts.append(slice(slot.offset, slot.offset + slot.size))
    return tuple(parts)


class Point:
    """An objective at one w. The activations of order 0 are kept in the objective's workspace; if another point has
    taken their place they are computed again."""

    def __init__(self, objective: Objective, w: ArrayLike | DeviceArray):
        if not isinstance(objective, Objective):
            raise ArgumentTypeError(
                f"Point: expected a rop.Objective, got {type(objective).__name__}; objective.at(w) makes a point"
            )
        self._f, workspace = objective, objective._workspace
        self._like_w = giver(w)
        self._position = position = objective._position(objective._vector("w", w))
        with engine_lock():
            self._grad = workspace.evaluate(position, GRADIENT)[0]
            self.loss: float = workspace.value(0)
            self._batch_stats = workspace.batch_statistics()
        self.w = w = position.w  # a copy, so that the user's array may change
        if isinstance(w, np.ndarray):
            w.setflags(write=False)

    @property
    def objective(self) -> Objective:
        """The objective of which this is a point."""
        return self._f

    @property
    def _workspace(self) -> Workspace:
        return self._f._workspace

    @property
    def grad(self) -> Vector:
        """∇f(w), (n,)."""
        return self._like_w(self._f._workspace.vectors.keep(self._grad))

    @property
    def batch_stats(self) -> dict[str, np.ndarray]:
        """Mean and unbiased variance of every batchnorm layer in training mode, under the names of
        ``net.init_state()``: what a running average takes in."""
        return {name: self._like_w(value.copy()) for name, value in self._batch_stats.items()}

    def hvp(self, v: ArrayLike | DeviceArray) -> Vector:
        """H(w) v, for a vector (n,) or for the columns of (n, k); a pass of order 1.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((4, 1)), np.ones((4, 1)))
        >>> f.at(np.zeros(2, "f4")).hvp(np.eye(2, dtype="f4"))
        array([[2., 2.],
               [2., 2.]], dtype=float32)
        """
        f, given = self._f, v
        if type(v) is not np.ndarray or v.ndim == 2:
            v = f._floats("v", v)
            if v.ndim == 2:
                return giver(given)(self._block(v))
        vector = f._vector("v", v)
        with engine_lock():
            result = f._workspace.evaluate(self._position, PRODUCT, vector)[0]
        return result if vector is given else giver(given)(result)

    def _block(self, columns: Block) -> Block:
        if columns.shape[0] != self._f.net.size:
            n = self._f.net.size
            raise ArgumentError(
                f"v: expected shape ({n},) or ({n}, k), n = {n} being the number of parameters, got {columns.shape}"
            )
        with engine_lock():
            return self._workspace.products(self._position, columns)

    def product(self, v: Vector) -> Vector:
        """H(w) v for a solver that works in the device's memory: v is a contiguous vector there in the objective's
        precision, the result is the workspace's own memory and valid until the objective is asked again.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((4, 1)), np.ones((4, 1)))
        >>> f.at(np.zeros(2, "f4")).product(np.ones(2, "f4"))
        array([4., 4.], dtype=float32)
        """
        with engine_lock():
            return self._workspace.product(self._position, v)

    def r2(self, v: ArrayLike | DeviceArray) -> Vector:
        """vᵀ ∇H(w) v, a vector (n,): a pass of order 2, on top of the order-1 pass of the last hvp if that was for an
        equal v.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((4, 1)), np.ones((4, 1)))
        >>> f.at(np.zeros(2, "f4")).r2(np.ones(2, "f4"))         # a quadratic has no third derivative
        array([0., 0.], dtype=float32)
        """
        f = self._f
        vector = f._vector("v", v)
        with engine_lock():
            result = f._workspace.evaluate(self._position, THIRD, vector)[0]
        return result if vector is v else giver(v)(result)

    def taylor(self, v: ArrayLike | DeviceArray) -> Taylor:
        """f(w + r v) at r = 0: value, slope ⟨∇f, v⟩ and curvature vᵀHv, from the forward passes alone.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((4, 1)), np.ones((4, 1)))
        >>> f.at(np.zeros(2, "f4")).taylor(np.ones(2, "f4"))     # (2 r − 1)²
        Taylor(value=1.0, slope=-4.0, curvature=8.0)
        """
        vector = self._f._vector("v", v)
        with engine_lock():
            self._workspace.evaluate(self._position, THIRD, vector)
            return Taylor(self.loss, self._workspace.value(1), self._workspace.value(2))

    def outputs(self) -> np.ndarray:
        """The net's outputs (batch, ...) at this point, with batch statistics in training mode, unlike ``net.predict``.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((2, 1)), np.ones((2, 1)))
        >>> f.at(np.array([3, 4], "f4")).outputs()
        array([[7.],
               [7.]], dtype=float32)
        """
        from rop.activations import read_outputs

        with engine_lock():
            return self._like_w(read_outputs(self._workspace, self._position))

    def activations(self) -> Iterator[Activations]:
        """The input x and the gradient ∂f/∂y of every Linear and Conv2d layer, a part of the batch at a time; a layer
        that is used several times occurs as often. Σ over samples (and pixels) of ∂f/∂y xᵀ is the layer's part of ∇f.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((2, 1)), np.zeros((2, 1)))
        >>> (use,) = f.at(np.array([3, 4], "f4")).activations()
        >>> use.layer.describe(), use.inputs.tolist(), use.gradients.tolist()
        ('Linear 1→1', [[1.0], [1.0]], [[7.0], [7.0]])
        """
        from rop.activations import read_activations

        with engine_lock():
            yield from read_activations(self._workspace, self._position)

    def grams(self, root: np.ndarray) -> Sequence[Gram]:
        """Σ ā āᵀ over samples and places for the inputs ā of every use of a Linear or Conv2d layer, which has a 1 more
        if it has a bias, and the same for ∂f/∂y, that of each sample times its number in ``root`` (batch,): what K-FAC
        is made of. The objective's next question may overwrite them.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((2, 1)), np.zeros((2, 1)))
        >>> (gram,) = f.at(np.array([3, 4], "f4")).grams(np.ones(2))
        >>> gram.inputs[0].tolist(), gram.outputs[0].tolist()
        ([[2.0, 2.0], [2.0, 2.0]], [[98.0]])
        """
        from rop.activations import read_grams

        with engine_lock():
            return read_grams(self._workspace, self._position, root)

    def hessian(self) -> LinearOperator:
        """H(w) as a scipy.sparse.linalg.LinearOperator, symmetric, (n, n), in the objective's precision.

        >>> import numpy as np, rop
        >>> f = rop.Objective(rop.Sequential(rop.Linear(1, 1)), rop.MSE(), np.ones((4, 1)), np.ones((4, 1)))
        >>> H = f.at(np.zeros(2, "f4")).hessian()
        >>> H @ np.ones(2)
        array([4., 4.], dtype=float32)
        """
        from rop.curvature.hessian import Hessian  # SciPy is loaded only where it is asked for

        return Hessian(self)
