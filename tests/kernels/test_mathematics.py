"""The vectorisable versions of Python's ``math``."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from rop.kernels.cpu.mathematics import functions

ULPS = 3.0


def compiled(name: str, dtype: Any) -> Any:
    function = functions.made(dtype)[name]

    @numba.njit
    def each(x: Any, y: Any) -> None:
        for i in range(x.size):
            y[i] = function(x[i])

    return each


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["exp", "expm1", "tanh", "log"])
def test_within_three_units_in_the_last_place(name: str, dtype: Any) -> None:
    rng, info = np.random.default_rng(0), np.finfo(dtype)
    near = rng.normal(size=20_000)
    if name == "log":
        least, most = float(info.smallest_subnormal), float(info.max)
        far = np.exp2(rng.uniform(np.log2(least), 0.999 * np.log2(most), 20_000))
        x = np.concatenate([1 + 0.4 * np.tanh(near), far, [info.max, info.tiny, least]])
    else:
        x = np.concatenate([near, near * 1e-3, rng.uniform(-80, 80, 20_000)])
    x = x.astype(dtype)
    y = np.empty_like(x)
    compiled(name, dtype)(x, y)
    expected = getattr(np, name)(x.astype(np.longdouble))
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(y - expected) / np.abs(np.spacing(expected.astype(dtype)))
    assert float(np.nanmax(error)) <= ULPS


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["exp", "expm1", "tanh", "log"])
def test_where_nothing_is_left_but_the_limit(name: str, dtype: Any) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, 1.0, -1.0], dtype)
    y = np.empty_like(x)
    compiled(name, dtype)(x, y)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.testing.assert_allclose(y, getattr(np, name)(x), rtol=1e-6)
