"""Every CUDA kernel: small ragged arguments for each of its specialisations, and the expected results.

Expected results are computed in float64 with ``Jet``, truncated power series in the direction's parameter, on which the
layers are written as plain mathematics: no rule of an order 1 or 2 is repeated here. ``cuda_requests`` knows which
specialisations there are. There is a file per family, as in rop/kernels/cuda, and one for all kernels on vectors.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import numpy as np

from tests.helpers.cuda_cases.common import CASES, Case, Setting
from tests.helpers.cuda_requests import EVERY, Options

__all__ = ["CASES", "Case", "case_of"]

for _family in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_family.name}")


def case_of(name: str, dtype: Any, options: Options) -> Case:
    """The case of one specialisation."""
    orders, levels = options.get("orders", EVERY), options.get("levels", EVERY)
    return CASES[name](Setting(np.dtype(dtype).type, orders, levels, options))
