"""The PTX of every CUDA kernel is executed, and mistakes planted in kernels are found.

The machine of ``tests/helpers/ptx`` runs what the compiler emits for a GPU. Results must be those of NumPy; a race, an
access out of bounds, a read of shared memory that nobody wrote or a barrier that some threads miss is a failure.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.helpers.cuda_build import Spec, examined, executed, missing, ptx_of, specs, start_session
from tests.helpers.cuda_cases import case_of
from tests.helpers.cuda_requests import EVERY, factories
from tests.helpers.ptx import Kind

if missing() is not None:
    pytest.skip(str(missing()), allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def workers(request: pytest.FixtureRequest) -> None:
    start_session(request.session)


@pytest.mark.parametrize("spec", specs(), ids=str)
def test_execution(spec: Spec) -> None:
    found = examined(spec)
    assert not found.violations, "\n".join(found.violations)
    assert not found.wrong, "\n".join(found.wrong)


# ---------------------------------------------------------------------------------------------------------------
# planted mistakes
# ---------------------------------------------------------------------------------------------------------------
JET = {"orders": EVERY, "levels": EVERY}
SMALL = {**JET, "adjoint": False, "tile": "small"}

NUMBERS = "numbers"  # no access is wrong: only the comparison with NumPy can tell

# file, kernel (with its own file if that is another one), options, the sound text, the mistake, what must be found
PLANTED: dict[str, tuple[str, str, dict[str, Any], str, str, Kind | str]] = {
    "barrier before the product": (
        "bilinear",
        "products",
        SMALL,
        "        cuda.syncthreads()\n        multiply(",
        "        multiply(",
        Kind.RACE,
    ),
    "barrier after the product": (
        "bilinear",
        "products",
        SMALL,
        "my_row, my_column)\n        cuda.syncthreads()\n    if lane_0",
        "my_row, my_column)\n    if lane_0",
        Kind.RACE,
    ),
    "barrier of the weight gradient": (
        "bilinear",
        "weight_gradient",
        {**JET, "tile": "small"},
        "my_row, my_column)\n        cuda.syncthreads()\n    for m",
        "my_row, my_column)\n    for m",
        Kind.RACE,
    ),
    "rows of the result without a bound": (
        "bilinear",
        "products",
        SMALL,
        "            if i < group_rows:\n",
        "            if True:\n",
        Kind.OUT_OF_BOUNDS,
    ),
    "lanes of the result without a bound": (
        "bilinear",
        "products",
        {**SMALL, "tile": "large"},
        "if lane_0 + my_column < lanes:",
        "if lanes > 0:",
        Kind.OUT_OF_BOUNDS,
    ),
    "terms of the sum without a bound": (
        "bilinear",
        "products",
        SMALL,
        "if j_0 + step < source.shape[1] and lane < lanes else -1",
        "if lane < lanes else -1",
        Kind.OUT_OF_BOUNDS,
    ),
    "columns of the weight gradient without a bound": (
        "bilinear",
        "weight_gradient",
        {**JET, "tile": "small"},
        "if i < group_rows and j < fan:",
        "if i < group_rows:",
        Kind.RACE,
    ),
    "edge of a tile left as it was": (
        "bilinear",
        "products",
        SMALL,
        "        tiles[0][step, i] = w[at] if inside else real(0)\n",
        "        if inside:\n            tiles[0][step, i] = w[at]\n",
        Kind.UNWRITTEN,
    ),
    "factor of V y¹": (
        "gemm",
        "bilinear.products",
        SMALL,
        "sums[2][m, n] += factor * y[1][n]",
        "sums[2][m, n] += factor * y[1][n] / real(2)",
        NUMBERS,
    ),
    "a sum in float64": (
        "bilinear",
        "bias_gradient",
        {"orders": EVERY},
        "sum0 = sum1 = sum2 = real(0)\n    lost0",
        "sum0 = sum1 = sum2 = 0.0\n    lost0",
        Kind.FLOAT64,
    ),
    "barrier of a block's sum": (
        "sums",
        "moments",
        {},
        "            buffer[thread] += buffer[thread + step]\n        cuda.syncthreads()\n",
        "            buffer[thread] += buffer[thread + step]\n",
        Kind.RACE,
    ),
    "barrier that half of the threads miss": (
        "sums",
        "moments",
        {},
        "            buffer[thread] += buffer[thread + step]\n        cuda.syncthreads()\n",
        "            buffer[thread] += buffer[thread + step]\n            cuda.syncthreads()\n",
        Kind.BARRIER,
    ),
    "barrier before the buffer is used again": (
        "sums",
        "moments",
        {},
        "    total = buffer[0]\n    cuda.syncthreads()\n",
        "    total = buffer[0]\n",
        Kind.RACE,
    ),
    "barrier of a transposed tile": (
        "memory",
        "load",
        {},
        "    cuda.syncthreads()\n    for i in range(cuda.threadIdx.y, WARP, STRIPES):\n        if row_0 + i < y",
        "    for i in range(cuda.threadIdx.y, WARP, STRIPES):\n        if row_0 + i < y",
        Kind.RACE,
    ),
    "factor 2 of the squared error": (
        "loss",
        "squared_error",
        JET,
        "square_seed(omega, d), square_seed(omega, u1)",
        "square_seed(omega, d), omega * u1",
        NUMBERS,
    ),
    "factor 2 of the variance": (
        "batchnorm",
        "statistics",
        JET,
        "s1 = variance_1(s01, n)",
        "s1 = s01 / n",
        NUMBERS,
    ),
    "padding lanes in the statistics": (
        "batchnorm",
        "statistics",
        JET,
        "if samples[lane] >= 0:",
        "if samples[lane] >= -1000:",
        NUMBERS,
    ),
    "the last of equals": ("select", "pool", {"orders": EVERY}, "value > best", "value >= best", NUMBERS),
    "NaN that is rectified": (
        "select",
        "rectify",
        {"orders": EVERY},
        "rectified(x[1][row, lane], at, slope)",
        "x[1][row, lane] if at > real(0) else slope * x[1][row, lane]",
        NUMBERS,
    ),
}


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Any]:
    """Loads a kernel file with a mistake in it, beside the sound one, or a file that imports from the former."""
    names: list[str] = []

    def source(file: str) -> str:
        return Path(str(sys.modules[f"rop.kernels.cuda.{file}"].__file__)).read_text("utf-8")

    def load(file: str, text: str) -> Any:
        path = tmp_path / f"{file}_planted.py"
        path.write_text(text, "utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # dataclasses look there
        names.append(path.stem)
        spec.loader.exec_module(module)
        return module

    def plant(file: str, sound: str, mistake: str, user: str | None = None) -> Any:
        assert sound in source(file), f"{file}.py has changed: {sound!r} is not in it"
        module = load(file, source(file).replace(sound, mistake))
        if user is None or user == file:
            return module
        imports = f"from rop.kernels.cuda.{file} import"
        assert imports in source(user)
        return load(user, source(user).replace(imports, f"from {module.__name__} import"))

    with mock.patch.dict(factories()):
        yield plant
    for name in names:
        del sys.modules[name]


@pytest.mark.parametrize("name", PLANTED)
def test_planted_mistake_is_found(name: str, planted: Any) -> None:
    file, kernel, options, sound, mistake, kind = PLANTED[name]
    user, kernel = kernel.split(".") if "." in kernel else (file, kernel)
    made = getattr(planted(file, sound, mistake, user), kernel)("float32", **options)
    report, wrong = executed(ptx_of(made), made, case_of(f"{user}.{kernel}", "float32", options))
    if kind == NUMBERS:
        assert wrong and not report.violations
    else:
        assert kind in report.kinds, f"{report.kinds}, {wrong}"


def test_without_the_mistake_nothing_is_found(planted: Any) -> None:
    made = planted("bilinear", "OPEN, RELU, MASK", "OPEN, RELU, MASK").products("float32", **SMALL)
    report, wrong = executed(ptx_of(made), made, case_of("bilinear.products", "float32", SMALL))
    assert not wrong and not report.violations
