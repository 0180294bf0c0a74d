"""From kernel files to launches on the device.

As for the CPU, a kernel file is plain Python in which the name ``real`` stands for the precision. The same way other
names stand for the other options of a specialisation:

    wants_0, wants_1, wants_2    whether this launch computes order k
    has_0, has_1, has_2          whether the input has an order k; if not, it is a structural zero that is never read

They are bound before compilation, so that the compiler sees constants and an order that is not wanted costs nothing.
``@kernel`` makes a *factory* of such a function: ``factory(dtype, orders=(0, 1))`` returns the kernel of one
specialisation, which is made once. Annotations give the kinds of the parameters (``KINDS``).

    kernel = rectify(np.float32, orders=(0, 2))
    launch = kernel.bind(y=(y0, None, y2), x=(x0, None, x2), mask=mask, slope=0.0)  # grid and block from the shapes
    launch()                                                                        # any number of times

A jet is one parameter: a tuple with an array for each order. Its indices in kernels are constants, so that it costs
nothing: ``y[1][row, lane]`` compiles to the same code as an array y1 of its own would.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numba import config, cuda

from rop.kernels.compile import PerPrecision, specialised
from rop.kernels.scalar import compilable

if TYPE_CHECKING:
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

SIMULATED = bool(config.ENABLE_CUDASIM)  # Numba's simulator knows fewer options than its compiler
ORDERS = (0, 1, 2)
WARP = 32  # lanes of a batch are padded to a multiple of this
STRIPES = 8  # rows of a block's threads, a warp of lanes each
THREADS = WARP * STRIPES  # threads of a block, unless a kernel has its own block
ROW_BLOCK = (WARP, STRIPES)

# The kinds of parameters, which kernel files use as annotations; to a type checker they are Any.
Matrix: TypeAlias = Any
Vector: TypeAlias = Any
Table: TypeAlias = Any
Indices: TypeAlias = Any
Jet: TypeAlias = Any
VectorJet: TypeAlias = Any
Count: TypeAlias = Any
Number: TypeAlias = Any
ARRAYS = {
    "Matrix": "{real}[:, ::1]",
    "Vector": "{real}[::1]",
    "Table": "int32[:, ::1]",
    "Indices": "int32[::1]",
}
JETS = {"Jet": "Matrix", "VectorJet": "Vector"}  # an array of this kind for each order
KINDS = {
    **ARRAYS,
    **{jet: f"UniTuple({ARRAYS[kind]}, {len(ORDERS)})" for jet, kind in JETS.items()},
    "Count": "int64",
    "Number": "{real}",
    "Strides": "UniTuple(int64, 5)",  # of the weights of a product, see bilinear.py
    "Rows": "UniTuple(int64, 7)",  # of a product of values and its factors, see product.py
}

real: Any = np.float64  # bound per specialisation, as are the names that start with wants_ and has_
wants_0: Any = True
wants_1: Any = True
wants_2: Any = True
has_0: Any = True
has_1: Any = True
has_2: Any = True


Function = Callable[..., Any]  # a kernel function, a helper or a formula, in Python
Real = type[np.floating[Any]]  # np.float32 or np.float64
Orders = tuple[int, ...]
BoundNames = dict[str, Any]  # names in a kernel function -> their values in one specialisation
Arguments = dict[str, Any]  # parameters of a kernel -> arrays, jets of arrays, numbers


# ------------------------------------------------------------------------------------------------ functions of a device
def formula(function: Function) -> PerPrecision:
    """A layer's scalar mathematics (rop/layers/) for use in kernels, together with the functions that it calls; their
    literals have the kernel's precision. The device has no NumPy: ``math`` takes its place."""
    return PerPrecision(lambda dtype: in_kernels(compilable(function, dtype, in_kernels, {np: math})))


def device_function(function: Function, /, **bind: Any) -> PerPrecision:
    """A device function of which one copy is made per precision; ``bind`` gives names in it a value."""
    return PerPrecision(lambda dtype: in_kernels(bound(function, dtype, bind)))


class Helper:
    """Index arithmetic or a sum that kernels share; it is compiled into each kernel, with the kernel's bound names."""

    def __init__(self, function: Function, bind: dict[str, Helper]):
        self._function, self._bind = function, bind
        self._made: dict[Any, Any] = {}

    def made(self, dtype: Real, names: BoundNames) -> Any:
        """The device function for kernels of this precision in which these names are bound."""
        key = dtype, *sorted((name, value) for name, value in names.items() if not isinstance(value, PerPrecision))
        if key not in self._made:
            others = {name: other.made(dtype, names) for name, other in self._bind.items()}
            self._made[key] = in_kernels(bound(self._function, dtype, {**names, **others}))
        return self._made[key]

    def __call__(self, *args: Any) -> Any:
        raise TypeError("a helper is called from kernels only")


def helper(function: Function, /, **bind: Helper) -> Helper:
    """Declares a helper; ``bind`` names the helpers that it calls under names of its own."""
    return Helper(function, bind)


def bound(function: Function, dtype: Real, names: BoundNames) -> Function:
    """A copy of a kernel function or a helper for this precision, in which these names have these values."""
    mentioned = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    helpers = {name: value.made(dtype, names) for name, value in mentioned.items() if isinstance(value, Helper)}
    given = {name: value.made(dtype) if isinstance(value, PerPrecision) else value for name, value in names.items()}
    return specialised(function, dtype, **given, **helpers)


def in_kernels(function: Function) -> Any:
    """A device function. Numba inlines it: otherwise its results might spill to local memory, and the compiler would
    see functions in an order that changes from run to run, and would generate different code with it."""
    return cuda.jit(function, device=True, inline="always")


# ------------------------------------------------------------------------------------------------------ specialisations
Names = Callable[..., BoundNames]  # options of a factory -> values of the names in its function


def no_options() -> BoundNames:
    """Bound names of kernels that exist once per precision: none."""
    return {}


def by_order(orders: Orders = ORDERS, levels: Orders = ORDERS) -> BoundNames:
    """Bound names of kernels that compute ``orders`` of the jet from an input whose orders ``levels`` are not zero."""
    return {**{f"wants_{k}": k in orders for k in ORDERS}, **{f"has_{k}": k in levels for k in ORDERS}}


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments, ready to run any number of times."""

    kernel: Specialisation
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Any, ...]

    def __call__(self) -> None:
        self.kernel.dispatcher[self.grid, self.block](*self.arguments)


class Specialisation:
    """One kernel: a function with all its names bound."""

    def __init__(self, factory: Factory, dtype: Real, options: dict[str, Any]):
        self.factory, self.dtype, self.options = factory, dtype, options
        self.names = factory.names(**options)
        self.function = bound(factory.function, dtype, self.names)
        self.block = factory.block(self.names) if callable(factory.block) else factory.block

    @property
    def title(self) -> str:
        """Its name in tables and test reports."""
        options = [f"{name}={_as_text(value)}" for name, value in self.options.items()]
        return f"{self.factory.name} {' '.join([np.dtype(self.dtype).name, *options])}"

    @property
    def signature(self) -> str:
        """The types of its arguments in Numba's notation."""
        kinds = (KINDS[kind] for kind in self.factory.parameters.values())
        return f"void({', '.join(kinds).format(real=np.dtype(self.dtype).name)})"

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return math.prod(self.block)

    @property
    def launch_bounds(self) -> tuple[int, int]:
        """The compiler's limits: registers must suffice for the threads of one block per multiprocessor. With more
        blocks required, it would spill registers."""
        return self.threads, 1

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's object that launches the kernel. It is compiled for the signature, so that a launch need not look
        for the code that fits the types of its arguments."""
        if SIMULATED:
            return cuda.jit(self.function)
        return cuda.jit(self.signature, launch_bounds=self.launch_bounds)(self.function)

    def bind(self, **given: Any) -> Launch:
        """The launch on these arguments. Arrays of an order that is neither computed nor read may be left out."""
        unknown = set(given) - set(self.factory.parameters)
        assert not unknown, f"{self.title}: no parameter is called {sorted(unknown)}"
        complete = {name: self._argument(name, kind, given) for name, kind in self.factory.parameters.items()}
        grid = self.factory.grid(self.names, complete)
        return Launch(self, grid, self.block, tuple(complete.values()))

    def _argument(self, name: str, kind: str, given: Arguments) -> Any:
        """The argument for a parameter, converted to the parameter's kind."""
        value = given.get(name)
        if kind in JETS:
            return self._complete(name, value or (None,) * len(ORDERS), JETS[kind], given)
        if kind in ARRAYS:
            return self._stand_in(kind, given) if value is None else self._checked(name, kind, value)
        assert value is not None, f"{self.title}: {name} is missing"
        return self.dtype(value) if kind == "Number" else int(value) if kind == "Count" else value

    def _complete(
        self, name: str, jet: tuple[DeviceNDArray | None, ...], kind: str, given: Arguments
    ) -> tuple[DeviceNDArray, ...]:
        """A jet with arrays for all orders. Another order of it takes the place of one that was left out, because grids
        are computed from shapes."""
        some = next((array for array in jet if array is not None), None)
        if some is None:
            some = self._stand_in(kind, given)
        return tuple(some if array is None else self._checked(name, kind, array) for array in jet)

    def _checked(self, name: str, kind: str, array: DeviceNDArray) -> DeviceNDArray:
        """The array, which must have the type in the signature: a launch does not look at it."""
        expected = self._dtype_of(kind), 2 if kind in ("Matrix", "Table") else 1
        assert (array.dtype, array.ndim) == expected, f"{self.title}: {name} is {array.dtype}, {array.ndim}-dimensional"
        return array

    def _dtype_of(self, kind: str) -> np.dtype:
        return np.dtype(self.dtype if kind in JETS.values() else np.int32)

    def _stand_in(self, kind: str, given: Arguments) -> DeviceNDArray:
        """An array that is never accessed, in place of one that was left out: any other of its kind."""
        for name, value in given.items():
            own = self.factory.parameters[name]
            if JETS.get(own, own) == kind:
                for array in (value or ()) if own in JETS else (value,):
                    if array is not None:
                        return array
        return cuda.device_array((1, 1) if kind in ("Matrix", "Table") else 1, self._dtype_of(kind))


def _as_text(value: Any) -> str:
    """An option's value as text."""
    if isinstance(value, tuple):
        return "".join(map(str, value))
    return getattr(value, "__name__", str(value))


Grid = Callable[[BoundNames, Arguments], tuple[int, ...]]  # -> blocks
Block = tuple[int, ...] | Callable[[BoundNames], tuple[int, ...]]  # or from the bound names

FACTORIES: dict[str, Factory] = {}


class Factory:
    """The specialisations of one kernel function; each is made once."""

    def __init__(self, function: Function, grid: Grid, block: Block, names: Names):
        self.function, self.grid, self.block, self.names = function, grid, block, names
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self.parameters: dict[str, str] = dict(inspect.get_annotations(function))
        self.__doc__ = function.__doc__
        self.made: dict[Any, Specialisation] = {}

    def __call__(self, dtype: Any, **options: Any) -> Specialisation:
        dtype = np.dtype(dtype).type
        bound = inspect.signature(self.names).bind(**options)
        bound.apply_defaults()
        key = dtype, *bound.arguments.values()
        if key not in self.made:
            self.made[key] = Specialisation(self, dtype, dict(bound.arguments))
        return self.made[key]


def kernel(grid: Grid, block: Block = (THREADS,), names: Names = no_options) -> Callable[[Function], Factory]:
    """Declares a kernel function; ``names`` computes the values of its bound names from the factory's options."""

    def declare(function: Function) -> Factory:
        made = Factory(function, grid, block, names)
        FACTORIES[made.name] = made
        return made

    return declare


# ---------------------------------------------------------------------------------------------------------------- grids
def blocks_of(count: int, size: int) -> int:
    """The number of blocks of this size that cover ``count`` items, at least 1.

    >>> blocks_of(65, 32)
    3
    """
    return max(1, -(-int(count) // size))


def per_number(parameter: str) -> Grid:
    """A grid with a thread for every number of a vector."""
    return lambda names, arguments: (blocks_of(arguments[parameter].size, THREADS),)


def per_row(parameter: str) -> Grid:
    """A grid with a thread for every number of an order (row, lane) of a jet; the block is ROW_BLOCK, and a thread
    finds its number with ``position``."""

    def grid(names: BoundNames, arguments: Arguments) -> tuple[int, ...]:
        rows, lanes = arguments[parameter][0].shape
        return blocks_of(rows, STRIPES), blocks_of(lanes, WARP)

    return grid


# -------------------------------------------------------------------------------------------------- shared by all files
@helper
def put(y, row, column, values):
    """y_k[row, column] = value_k for the orders that are wanted."""
    if wants_0:
        y[0][row, column] = values[0]
    if wants_1:
        y[1][row, column] = values[1]
    if wants_2:
        y[2][row, column] = values[2]


@helper
def add_to(out, place, value, add):
    """out[place] = value, or += value if an earlier use of the same parameter has written there."""
    out[place] = value + (out[place] if add != 0 else real(0))


@helper
def position():
    """Row and lane of this thread, in the grid ``per_row``."""
    return cuda.blockIdx.x * STRIPES + cuda.threadIdx.y, cuda.blockIdx.y * WARP + cuda.threadIdx.x
