"""Compiling kernels: one source for both precisions, called by address, cached on disk.

A kernel file is plain Python. The name ``real`` in it stands for the precision (np.float32 or np.float64), and the
decorators say what a function is:

    @kernel         an instruction of the engine: compiled once per precision to a C function, which the interpreter
                    calls by its address. Nothing is compiled again inside a caller, and a new network compiles nothing.
    @helper         index arithmetic shared by kernels, compiled into them (parts.py)
    @tuned          a helper that is optimised twice
    @loop           a helper whose arguments are arrays that do not overlap, so that LLVM vectorises it
    formula(f)      a layer's scalar mathematics (rop/layers/), compiled into kernels: its number literals take the
                    precision ``real`` and its ``math`` is the vectorisable one of the target
    algebra(f)      a formula of sums and products, which the loop that calls it may reassociate

No formula stands in a kernel file: kernels hold index arithmetic, and the CUDA kernels compile the same formulas.

``specialised(function, dtype)`` makes the copy of a function in which ``real`` is bound and every decorated function
it mentions is replaced by its own copy for that precision.

The cache is keyed by a digest of *all* sources in rop/kernels and rop/layers except those for the GPU: an edit in any
of them leads to a new folder. (Numba's own cache looks at the file of the outermost function only.) store.py describes
the files of the cache and when they are trusted.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import types as pytypes
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numba
import numpy as np
from numba.core import types
from numba.core.caching import _Cache
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult

from rop.errors import say
from rop.kernels import store
from rop.kernels.cpu.vector import UNIT, check_host, target_cpu
from rop.kernels.parts import PartCompiler, TunedCompiler
from rop.kernels.scalar import compilable, identity

PACKAGE = Path(__file__).resolve().parent.parent

# No 'nnan', no 'ninf': NaN and Inf must stay honest. 'reassoc' lets sums over lanes be vectorised; formulas go without
# it, because their order of operations is what makes them accurate.
LOOP_MATH = {"contract", "nsz", "arcp", "reassoc"}
FORMULA_MATH = {"contract", "nsz"}
# Kernel files use these names for the precision and its size in bytes; ``specialised`` binds both.
real: Any = np.float64
itemsize = 8

OPTIONS: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True, "nogil": True}
PART: dict[str, Any] = {**OPTIONS, "pipeline_class": PartCompiler}  # of functions that only kernels call


# ---------------------------------------------------------------------------------------------------------- the cache
def source_digest(package: Path | str = PACKAGE) -> str:
    """A digest of every source file that compiled code for the CPU depends on."""
    digest, elsewhere = hashlib.sha256(), Path(package) / "kernels" / "cuda"
    for folder in ("kernels", "layers"):
        for path in sorted((Path(package) / folder).rglob("*.py")):
            if path.is_relative_to(elsewhere):
                continue
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def kind() -> str:
    """The kind of CPU that kernels are compiled for, as a part of a folder's name: the CPU's name, a digest of its
    features and the geometry of the kernels. Kinds do not share a folder, because each must be complete on its own."""
    name, features = target_cpu()
    return f"{name}-{hashlib.sha256(features.encode()).hexdigest()[:8]}-{UNIT.name}"


@lru_cache(maxsize=1)
def cache_folder() -> Path:
    """The folder in which compiled kernels are kept: $ROP_CACHE_DIR, the user's cache folder, or, if neither can be
    used, a temporary folder for this process and its children. A folder that others could write to is never used."""
    check_host(target_cpu()[0])
    version = f"{source_digest()}-numba{numba.__version__}-py{sys.version_info.major}.{sys.version_info.minor}-{kind()}"
    for folder in (candidate / version for candidate in _candidates()):
        if store.distrusted(folder):  # before anything is made there
            break
        wrong = store.damage(folder)
        if wrong:
            say(f"the folder of compiled kernels {folder} is not used, because {wrong}: copy it again, or remove it")
            continue
        if store.writable(folder) or store.complete(folder):
            if store.distrusted(folder):
                break  # somebody else made it just now
            return folder
    return store.temporary(version)


def _candidates() -> list[Path]:
    """The folders that may hold the cache, absolute: other processes may work in other folders."""
    named, user = os.environ.get("ROP_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    folders = [Path(named)] if named else []
    with suppress(RuntimeError):  # a user without a home
        folders.append((Path(user) if user else Path.home() / ".cache") / "rop")
    return [folder.absolute() for folder in folders]


class KernelCache(_Cache):
    """Numba's interface of a cache, for the function with this name, on top of the files in ``cache_folder()``."""

    unsaved = 0  # entries that this process could not write

    def __init__(self, name: str, ahead: bool = True):
        self._entries, self._name = store.Entries(cache_folder(), name), name
        self._ahead = ahead  # warm.py compiles it ahead of use

    @property
    def cache_path(self) -> str:
        return str(cache_folder())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        found = self._load(sig, target_context)
        if found is None and self._ahead:
            from rop.kernels import warm

            if warm.compiled_again(self._name):  # so that this process runs the code that all later ones will load
                found = self._load(sig, target_context)
        return found

    def _load(self, sig: Any, target_context: Any) -> Any:
        data = self._entries.load((sig, target_context.codegen().magic_tuple()))
        try:
            return None if data is None else CompileResult._rebuild(target_context, *data)
        except Exception:  # an entry that this Numba cannot use is compiled again
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        if data.library.has_dynamic_globals:  # they are addresses, which are invalid in another process
            return
        try:
            self._entries.save((sig, data.codegen.magic_tuple()), data._reduce())
        except OSError as error:
            if not KernelCache.unsaved:
                say(
                    f"compiled kernels cannot be kept in {cache_folder()} ({error.strerror or error}): they are used "
                    "now and compiled again at the next start"
                )
            KernelCache.unsaved += 1

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...


# ------------------------------------------------------------------------------------------------------ specialisation
class PerPrecision:
    """An object that exists once per precision; ``made(dtype)`` makes it at first use.

    >>> size = PerPrecision(lambda dtype: np.dtype(dtype).itemsize)
    >>> size.made(np.float32), size.made(np.float64)
    (4, 8)
    """

    def __init__(self, make: Callable[[Any], Any]):
        self._make = make
        self._ready: dict[Any, Any] = {}

    def made(self, dtype: Any) -> Any:
        """The object for this precision."""
        if dtype not in self._ready:
            self._ready[dtype] = self._make(dtype)
        return self._ready[dtype]

    def __call__(self, *args: Any) -> Any:
        raise TypeError("a kernel function is called from compiled code only")


def _names(code: pytypes.CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, pytypes.CodeType)]
    return set(code.co_names).union(*(_names(c) for c in inner))


def specialised(function: Callable[..., Any], dtype: Any, /, **bind: Any) -> Callable[..., Any]:
    """A copy of ``function`` in which ``real`` is ``dtype``, the names in ``bind`` have these values, and every
    PerPrecision global is replaced by its object for this precision."""
    scope = {**function.__globals__, "real": dtype, "itemsize": np.dtype(dtype).itemsize, **bind}
    for name in _names(function.__code__):
        value = scope.get(name)
        if isinstance(value, PerPrecision):
            scope[name] = value.made(dtype)
    copy = pytypes.FunctionType(
        function.__code__,
        scope,
        f"{function.__name__}_{np.dtype(dtype).name}",
        function.__defaults__,
        function.__closure__,
    )
    copy.__qualname__ = copy.__name__
    copy.__module__ = function.__module__
    return copy


def helper(function: Callable[..., Any], /, **bind: Any) -> Any:
    """Declares index arithmetic, which is compiled into the kernels that use it; ``bind`` gives names in it a value."""
    return PerPrecision(lambda dtype: numba.njit(fastmath=LOOP_MATH, **PART)(specialised(function, dtype, **bind)))


def tuned(function: Callable[..., Any]) -> Any:
    """Declares a helper that is optimised by itself before it is optimised inside its callers. The loops of some
    micro-kernels gain a fifth from being optimised twice; it takes longer to compile."""
    options = {**PART, "pipeline_class": TunedCompiler}
    return PerPrecision(lambda dtype: numba.njit(fastmath=LOOP_MATH, **options)(specialised(function, dtype)))


def loop(function: Callable[..., Any], /, **bind: Any) -> Any:
    """Declares a helper whose arguments are arrays that do not overlap: LLVM then vectorises without checking."""

    def make(dtype: Any) -> Any:
        dispatcher = numba.njit(fastmath=LOOP_MATH, **PART)(specialised(function, dtype, **bind))
        dispatcher._compiler._customize_flags = _without_aliases  # Numba has the flag, but no option that sets it
        return dispatcher

    return PerPrecision(make)


def _without_aliases(flags: Any) -> Any:
    flags.noalias = True
    return flags


def formula(function: Callable[..., Any], versions: PerPrecision | None = None) -> PerPrecision:
    """Compiles a layer's scalar mathematics into kernels, together with the functions that it calls, and keeps its
    order of operations; ``versions`` are the target's versions of ``math`` and NumPy."""
    return _scalar(function, numba.njit(fastmath=FORMULA_MATH, **PART), versions)


def algebra(function: Callable[..., Any]) -> PerPrecision:
    """A formula of sums and products alone. Numba inlines it, so that it is compiled as if it stood in the loop that
    calls it, with the loop's freedom to reassociate: a factor that does not change is moved out of the loop."""
    return _scalar(function, numba.njit(inline="always", **PART))


def _scalar(
    function: Callable[..., Any], jit: Callable[..., Any], versions: PerPrecision | None = None
) -> PerPrecision:
    known = identity(function)  # compiled code is linked by name: two formulas must not share one

    def make(dtype: Any) -> Any:
        replaced = versions.made(dtype) if versions is not None else {}
        return jit(compilable(function, dtype, jit, replaced, tag=f"{known}_{np.dtype(dtype).name}"))

    return PerPrecision(make)


# ------------------------------------------------------------------------------------------------------------- kernels
# Operands that are tuples of words; kernel files use these names as annotations. Any other operand is one word.
Jet: TypeAlias = tuple[
    int, int, int
]  # the addresses of orders 0, 1 and 2; those above the order of a pass are not read
Derivatives: TypeAlias = tuple[int, int, int]  # the addresses of σ′, σ″ and σ‴
Pair: TypeAlias = tuple[int, int]  # the addresses of orders 0 and 1 of parameters
Terms: TypeAlias = tuple[int, int, int, int, int, int, int]  # of a sum over orders: see gemm.py
Factor: TypeAlias = tuple[int, int, int]  # of a lane dot: see gemm.py
Extent: TypeAlias = tuple[int, int, int, int]  # how a value lies: pixels, channels, lanes of a row, bytes of a row
Sets: TypeAlias = tuple[int, int, int, int]  # of rows: see norm.py
Axis: TypeAlias = tuple[int, int, int, int]  # its length, and the steps of a result and two factors: see product.py
Slice: TypeAlias = tuple[int, int]  # number of a slice, and into how many a kernel's work is divided
Windows: TypeAlias = tuple[int, int, int]  # of a pooling on pixel lanes: entries, addresses of their lanes and words
WORDS = {
    "Jet": 3,
    "Derivatives": 3,
    "Pair": 2,
    "Terms": 7,
    "Factor": 3,
    "Extent": 4,
    "Sets": 4,
    "Axis": 4,
    "Slice": 2,
    "Windows": 3,
}

KERNELS: dict[str, Kernel] = {}


class Kernel:
    """An instruction of the engine. ``operands`` has the name of each operand, and how many words it takes."""

    cache: Callable[[str], _Cache] = KernelCache  # makes the cache of the kernel with this name
    ahead = True  # whether warm.py can compile it ahead of use

    def __init__(self, function: Callable[..., Any], name: str = "", /, **bind: Any):
        self.name = name or f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        parameters = inspect.signature(function).parameters
        self.operands = {name: WORDS.get(str(given.annotation), 1) for name, given in parameters.items()}
        self._body = PerPrecision(
            lambda dtype: numba.njit(fastmath=LOOP_MATH, **PART)(specialised(function, dtype, **bind))
        )
        self._entries: dict[Any, CFunc] = {}

    def address(self, dtype: Any) -> int:
        """The address of its C function for a precision, which is compiled, or loaded from the cache, at first use."""
        dtype = np.dtype(dtype).type
        if dtype not in self._entries:
            self._entries[dtype] = self._compile(dtype)
        return int(self._entries[dtype].address or 0)

    def entry_name(self, dtype: Any) -> str:
        """The name of its entry in the cache."""
        return f"{self.name}_{np.dtype(dtype).name}"

    def _compile(self, dtype: Any) -> CFunc:
        return self._entry(self._body.made(dtype), dtype)

    def _entry(self, body: Callable[..., Any], dtype: Any) -> CFunc:
        from rop.kernels.cpu.interpreter import entry

        name = self.entry_name(dtype)
        function = entry(body, self.operands.values(), name)
        return compiled(function, types.void(types.int64, types.int64, types.int64), self.cache(name))


def compiled(function: Callable[..., Any], signature: Any, cache: _Cache) -> CFunc:
    """A C function, loaded from the cache if it is there and compiled otherwise."""
    result: Any = CFunc(
        function,
        (signature.args, signature.return_type),
        locals={},
        options={"fastmath": LOOP_MATH, "error_model": "numpy"},
    )
    result._cache = cache
    result.compile()
    return result


def kernel(function: Callable[..., Any]) -> Kernel:
    """Declares an instruction; the names of its parameters are the names of its operands."""
    made = Kernel(function)
    KERNELS[made.name] = made
    return made
