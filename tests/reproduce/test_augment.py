"""Crops, rotations and sizes against direct computations without Pillow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rop import ArgumentError, ArgumentTypeError
from rop.reproduce.augment import AT1, AT2, augmented, resized


def images(count: int = 5, side: int = 16) -> np.ndarray:
    return np.random.default_rng(3).integers(1, 256, (count, side, side), dtype=np.uint8)


def rotated(image: np.ndarray, degrees: float) -> np.ndarray:
    """Each new pixel's centre is turned back about the middle and takes the pixel in which it falls, or 0."""
    side, angle = len(image), -math.radians(degrees)
    found = np.zeros_like(image)
    for row in range(side):
        for column in range(side):
            x, y = column + 0.5 - side / 2, row + 0.5 - side / 2
            old_x = math.floor(math.cos(angle) * x + math.sin(angle) * y + side / 2)
            old_y = math.floor(-math.sin(angle) * x + math.cos(angle) * y + side / 2)
            if 0 <= old_x < side and 0 <= old_y < side:
                found[row, column] = image[old_y, old_x]
    return found


@pytest.mark.parametrize("settings", [AT1, AT2])
def test_crops_and_rotations(settings: dict):
    """Every image is one of the (2p + 1)² windows, rotated by an angle within the limits that was drawn for it."""
    x, (padding, degrees) = images(), (int(settings["padding"]), settings["degrees"])
    found = augmented(x, padding, degrees, seed=7)
    assert found.shape == x.shape and found.dtype == np.uint8
    rng = np.random.default_rng(7)
    corners, angles = rng.integers(0, 2 * padding + 1, (len(x), 2)), rng.uniform(-degrees, degrees, len(x))
    for image, made, (top, left), angle in zip(x, found, corners, angles, strict=True):
        frame = np.zeros((16 + 2 * padding, 16 + 2 * padding), np.uint8)
        frame[padding : padding + 16, padding : padding + 16] = image
        expected = rotated(frame[top : top + 16, left : left + 16], angle)
        assert (made != expected).sum() <= 1  # a centre on the border of two pixels may fall to either side


def test_a_positive_angle_turns_against_the_clock():
    """Pillow's convention, by which a bar at the right goes to the top."""
    x = np.zeros((1, 16, 16), np.uint8)
    x[0, 6:10, 12:] = 255
    assert rotated(x[0], 90.0)[:4, 6:10].all() and rotated(x[0], 90.0).astype(bool).sum() == 16


def test_the_seed_decides():
    x = images()
    same, other = augmented(x, 2, 30.0, seed=1), augmented(x, 2, 30.0, seed=2)
    np.testing.assert_array_equal(same, augmented(x, 2, 30.0, seed=1))
    assert (same != other).any()
    np.testing.assert_array_equal(augmented(x, 0, 0.0, seed=1), x)


def bilinear(x: np.ndarray, side: int) -> np.ndarray:
    """A triangle filter whose half width is one pixel of the coarser grid, rows first, in floating point."""
    scale = len(x[0]) / side
    width = max(scale, 1.0)
    centres = (np.arange(side) + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(np.arange(len(x[0])) + 0.5 - centres[:, None]) / width)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights @ x @ weights.T


@pytest.mark.parametrize(("old", "new"), [(28, 16), (16, 32), (32, 16)])
def test_bilinear_resizing(old: int, new: int):
    x = images(3, old)
    found = resized(x, new)
    assert found.shape == (3, new, new) and found.dtype == np.uint8
    # rounded to whole levels after each of the two directions
    np.testing.assert_allclose(found, [bilinear(one.astype(float), new) for one in x], atol=1.01)


def test_refusals():
    with pytest.raises(ArgumentTypeError, match=r"augmented: x .* uint8, got float64"):
        augmented(np.zeros((2, 16, 16)), 1, 15.0, 0)
    with pytest.raises(ArgumentError, match=r"resized: x .* \(count, height, width\), got \(16, 16\)"):
        resized(np.zeros((16, 16), np.uint8), 8)
