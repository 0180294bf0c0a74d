"""Parts of kernels: functions that are lowered to LLVM's language and then optimised only inside what calls them.

Numba optimises every function that another one calls, and makes machine code of it, before it links it into its caller,
where both are done again. Nobody calls a part of a kernel by itself, so this is left out: it was more than half of the
time in which a kernel was compiled.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


class PartLibrary(JITCodeLibrary):
    """The code of a part, with that of its own parts. It is never run, so it is neither optimised nor translated."""

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class TunedLibrary(PartLibrary):
    """The code of a part that is optimised by itself before it is optimised inside its callers."""

    def _optimize_final_module(self) -> None:
        JITCodeLibrary._optimize_final_module(self)


@register_pass(mutates_CFG=True, analysis_only=False)
class PartLowering(NativeLowering):
    """Lowers a function, without an entry for Python, and makes it known to those that call it."""

    _name = "rop_part_lowering"
    library = PartLibrary

    def run_pass(self, state: Any) -> bool:
        """One function."""
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        super().run_pass(state)
        lowered = state["cr"]
        key: Any = [].append  # callers know a function by its entry for Python; this stands for one, and is unique
        state.targetctx.insert_user_function(key, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=key)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class TunedLowering(PartLowering):
    """The same for a part that is optimised by itself, too."""

    _name = "rop_tuned_lowering"
    library = TunedLibrary


class PartCompiler(CompilerBase):
    """Numba's compiler, with the lowering of a part. Functions with parallel loops are compiled as usual."""

    lowering = PartLowering

    def define_pipelines(self) -> list[Any]:
        """The usual passes but one."""
        usual = DefaultPassBuilder.define_nopython_pipeline(self.state)
        usual.passes = [(self.lowering if one is NativeLowering else one, about) for one, about in usual.passes]
        usual.finalize()
        return [usual]


class TunedCompiler(PartCompiler):
    """The same for a part that is optimised by itself, too."""

    lowering = TunedLowering
