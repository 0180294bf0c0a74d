"""Const1 and Const2 against a slow version that goes image by image and bin by bin."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rop import ArgumentError
from rop.reproduce.constructed import EMPTY, constructed, nearness

rng = np.random.default_rng(0)
TEST = rng.normal(size=(30, 1, 4, 4))


def near(count: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Images near those of the test, one of them unchanged."""
    x = TEST[rng.integers(0, 30, count)] + scale * rng.normal(size=(count, 1, 4, 4)) * rng.uniform(
        size=(count, 1, 1, 1)
    )
    x[0] = TEST[0]
    return x, rng.integers(0, 10, count)


def slow_nearness(image: np.ndarray, measure: str) -> float:
    found = []
    for other in TEST:
        a, b = image.ravel(), other.ravel()
        if measure == "distance":
            found.append(math.sqrt(sum((p - q) ** 2 for p, q in zip(a, b, strict=True))))
        else:
            found.append(float(a @ b) / math.sqrt(float(a @ a) * float(b @ b)))
    return min(found) if measure == "distance" else max(found)


@pytest.mark.parametrize("measure", ["distance", "cosine"])
def test_against_the_slow_version(measure: str):
    parts = near(700, 2.0), near(600, 6.0)  # more than are computed at once
    values = [[slow_nearness(image, measure) for image in x] for x, _ in parts]
    for k in range(2):
        np.testing.assert_allclose(nearness(parts[k][0], TEST, measure), values[k], rtol=1e-12)
    found = constructed(*parts, TEST, measure, seed=5)
    start, step, bins = (0.0, 1.0, 18) if measure == "distance" else (0.5, 0.025, 20)
    assert len(found.sources) == bins and found.sources.count(-1) == EMPTY and {0, 1} <= set(found.sources)
    expected = []
    for k, (x, y) in enumerate(parts):
        for image, label, value in zip(x, y, values[k], strict=True):
            place = math.floor((min(value, 1 - 1e-12) if measure == "cosine" else value) / step - start / step)
            if 0 <= place < bins and found.sources[place] == k:
                expected.append((image, label))
    np.testing.assert_array_equal(found.labels, [label for _, label in expected])
    np.testing.assert_array_equal(found.images, np.stack([image for image, _ in expected]))
    assert 0 < len(expected) < 1300


def test_an_unchanged_image_is_in_the_nearest_bin():
    part = TEST[:1], np.array([4])
    for measure, nearest in (("distance", 0), ("cosine", -1)):
        for seed in range(20):
            found = constructed(part, part, TEST, measure, seed)
            assert len(found.labels) == (found.sources[nearest] >= 0)


def test_the_seed_decides():
    parts = near(50, 2.0), near(50, 6.0)
    one, same, other = (constructed(*parts, TEST, "distance", seed).sources for seed in (1, 1, 2))
    assert one == same != other


def test_refusals():
    with pytest.raises(ArgumentError, match="measure must be one of 'distance', 'cosine'"):
        constructed(near(5, 1.0), near(5, 1.0), TEST, "angle", 0)
    with pytest.raises(ArgumentError, match="expected images of 16 pixels"):
        nearness(np.zeros((2, 9)), TEST, "distance")
