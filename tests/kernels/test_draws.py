"""Random numbers by key: their distribution, and that places do not share them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rop.kernels.draws import distinct, key_of, normals

MANY = 200_000


@pytest.mark.parametrize("seed", range(3))
def test_normals_are_normal(seed: int) -> None:
    z = normals(MANY, key_of(seed, 7))
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert abs(stats.skew(z)) < 0.03 and abs(stats.kurtosis(z)) < 0.06
    assert np.abs(z).max() < 5.8 and (np.abs(z) > 4).sum() > 0


def test_normals_of_different_places_have_nothing_to_do_with_each_other() -> None:
    places = [normals(MANY, key_of(*parts)) for parts in ((0, 1), (0, 2), (1, 1), (1, 0), (0, 1, 0))]
    places += [np.roll(places[0], 1), np.roll(places[0], 16)]
    apart = np.corrcoef(places) - np.eye(len(places))
    assert np.abs(apart).max() < 5 / np.sqrt(MANY)


def test_normals_are_functions_of_key_and_place() -> None:
    long, short = normals(1000, key_of(3), np.float32), normals(10, key_of(3), np.float32)
    np.testing.assert_array_equal(long[:10], short)
    assert long.dtype == np.float32
    np.testing.assert_allclose(long, normals(1000, key_of(3)), rtol=1e-6)


def test_distinct_numbers_are_distinct_and_every_set_is_as_likely() -> None:
    drawn = [distinct(3, 6, key_of(5, i)) for i in range(8000)]
    assert all(len(set(one)) == 3 and min(one) >= 0 and max(one) < 6 for one in drawn)
    _, counts = np.unique([sorted(one) for one in drawn], axis=0, return_counts=True)
    assert len(counts) == 20 and stats.chisquare(counts).pvalue > 1e-3
