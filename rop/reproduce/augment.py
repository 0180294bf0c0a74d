"""Images for the tests of generalisation on digits: cropped and rotated at random, and brought to another size.

All work on grey levels of 8 bits, as the paper's pipeline (torchvision on Pillow's images) does, so the results are
grey levels again. Crops and rotations are one draw: every image is changed once, and all models see the same images.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from rop.arguments import check_float, check_int
from rop.errors import ArgumentError, ArgumentTypeError, missing_package

AT1 = {"padding": 1, "degrees": 15.0}
AT2 = {"padding": 2, "degrees": 30.0}


def augmented(x: np.ndarray, padding: int, degrees: float, seed: int) -> np.ndarray:
    """Images x (count, height, width) of grey levels, each moved and then rotated at random.

    An image gets a black border of ``padding`` pixels, and a window of its old size is cut out anywhere; so it moves by
    up to ``padding`` pixels. Then it is rotated about its middle by an angle drawn uniformly from ±``degrees``, every
    new pixel taking the nearest old one, or black where there is none.

    >>> x = np.arange(9, dtype=np.uint8).reshape(1, 3, 3)
    >>> augmented(x, padding=1, degrees=0.0, seed=0)
    array([[[3, 4, 5],
            [6, 7, 8],
            [0, 0, 0]]], dtype=uint8)
    """
    x = _checked("augmented", x)
    padding = check_int("augmented", "padding", padding, minimum=0)
    degrees = check_float("augmented", "degrees", degrees, minimum=0)
    rng = np.random.default_rng(check_int("augmented", "seed", seed, minimum=0))
    count, height, width = x.shape
    corners = rng.integers(0, 2 * padding + 1, (count, 2))  # of the windows, in the images with their borders
    angles = rng.uniform(-degrees, degrees, (count,))
    framed = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(framed, (height, width), axis=(1, 2))
    moved = windows[np.arange(count), corners[:, 0], corners[:, 1]]
    image = _pillow("augmented")
    nearest = {"resample": image.Resampling.NEAREST, "fillcolor": 0}
    turned = [image.fromarray(moved[k]).rotate(angles[k], **nearest) for k in range(count)]
    return np.stack([np.asarray(one) for one in turned]) if count else moved


def resized(x: np.ndarray, side: int) -> np.ndarray:
    """Images x (count, height, width) of grey levels as (count, side, side), by Pillow's bilinear filter.

    When images shrink, its window widens accordingly, so that all pixels count.

    >>> resized(np.array([[[0, 0, 200, 200]] * 4], np.uint8), 2)
    array([[[ 29, 171],
            [ 29, 171]]], dtype=uint8)
    """
    x, side = _checked("resized", x), check_int("resized", "side", side)
    image = _pillow("resized")
    small = [np.asarray(image.fromarray(one).resize((side, side), image.Resampling.BILINEAR)) for one in x]
    return np.stack(small) if small else np.empty((0, side, side), np.uint8)


def _checked(owner: str, x: np.ndarray) -> np.ndarray:
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8:
        kind = x.dtype if isinstance(x, np.ndarray) else type(x).__name__
        raise ArgumentTypeError(
            f"{owner}: x must be an array of grey levels, uint8, got {kind}; rop.experiments.data.usps.to_grey_levels "
            "makes them from a net's inputs"
        )
    if x.ndim != 3:
        raise ArgumentError(f"{owner}: x must have the shape (count, height, width), got {x.shape}")
    return x


def _pillow(owner: str) -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        raise missing_package(owner, "Pillow", "reproduce", error) from error
    return Image
