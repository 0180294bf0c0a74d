"""MNIST, 70,000 handwritten digits of 28×28 pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rop.arguments import check_choice
from rop.experiments.data import usps
from rop.experiments.dataset import DataSet, Part, part
from rop.experiments.files import Folder, check_range, check_shape, download_openml, file_in, folder_of, read_idx
from rop.experiments.nets import usps_net
from rop.experiments.settings import Experiment, adam

__all__ = ["mnist"]

EXPERIMENT = Experiment(usps_net, adam, mu=0.005, epochs=20, options={"size": 16})

TRAIN_ROWS, TEST_ROWS = 60_000, 10_000
SIDE = 28
MEAN, STD = 0.1307, 0.3081
BOX = 20  # each digit was fitted into a box of this side before it was centred in its image


def mnist(data: Folder = None, size: int = 28) -> DataSet:
    """MNIST: 70,000 handwritten digits, as images (1, 28, 28) or, with size 16, (1, 16, 16).

    Read from the four idx files (``train-images-idx3-ubyte.gz`` and so on), the split of the publishers. The last sixth
    of the training file is the validation part. Pixels are scaled to [0, 1], then by mean 0.1307 and standard deviation
    0.3081.

    Size 16 is for networks trained on USPS, whose digits leave no margin: the middle 20×20 pixels are cut out, brought
    to 16×16 by area averaging, and scaled like ``usps``. Digits are centred by their mass, so some reach beyond the
    cut: 3.5 % of the ink is lost.
    """
    size = check_choice("mnist", "size", size, (28, 16))
    folder = folder_of("mnist", data)
    (images, labels), test = _downloaded() if folder is None else _from_files(folder)

    def normalised(images: np.ndarray, labels: np.ndarray) -> Part:
        if size == usps.SIDE:
            pixels = (_without_margin(images) - usps.MEAN) / usps.STD
        else:
            # a table of the 256 grey values: as exact as float64, without a copy of all images in float64
            pixels = ((np.arange(256) / 255 - MEAN) / STD).astype(np.float32)[images]
        return part(pixels[:, np.newaxis], labels)

    kept = len(labels) - len(labels) // 6
    train, validation = normalised(images[:kept], labels[:kept]), normalised(images[kept:], labels[kept:])
    return DataSet("mnist", train, validation, normalised(*test), classes=10)


def to_grey_levels(inputs: np.ndarray) -> np.ndarray:
    """The grey levels 0 to 255 of images of 28×28 pixels, which were scaled by mean and standard deviation.

    >>> to_grey_levels(np.float32([(7 / 255 - MEAN) / STD]))
    array([7], dtype=uint8)
    """
    return np.rint(inputs * np.float32(255 * STD) + np.float32(255 * MEAN)).clip(0, 255).astype(np.uint8)


def _without_margin(images: np.ndarray) -> np.ndarray:
    """The middle 20×20 of each image, averaged over areas to 16×16, in [0, 1]."""
    margin = (SIDE - BOX) // 2
    box = images[:, margin:-margin, margin:-margin].reshape(len(images), -1)
    # On a grid of 80×80 cells an old pixel has 4×4 cells and a new one 5×5. The weight of an old pixel in a new one is
    # the number of cells they share: whole numbers, so the sums below are exact in float32 in any order.
    old, new = np.repeat(np.eye(BOX), 4, axis=1), np.repeat(np.eye(usps.SIDE), 5, axis=1)
    weights = np.kron(new @ old.T, new @ old.T).astype(np.float32)
    sums = box.astype(np.float32) @ weights.T
    return (sums / np.float32(255 * 25)).reshape(-1, usps.SIDE, usps.SIDE)


def _from_files(folder: Path) -> tuple[Part, Part]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    train_images, train_labels, test_images, test_labels = (file_in("mnist", folder, name) for name in names)
    return (
        _read_part(train_images, train_labels, TRAIN_ROWS),
        _read_part(test_images, test_labels, TEST_ROWS),
    )


def _read_part(images: Path, labels: Path, rows: int) -> Part:
    x, y = read_idx("mnist", images, (rows, SIDE, SIDE)), read_idx("mnist", labels, (rows,))
    check_range("mnist", labels, "labels", y, 0, 9)
    return x, y


def _downloaded() -> tuple[Part, Part]:
    """OpenML has one table; the training part comes first."""
    source = "the download of OpenML's mnist_784"
    x, y = download_openml("mnist", "the four MNIST files (train-images-idx3-ubyte.gz …)", "mnist_784", version=1)
    labels = y.astype(np.int64)
    check_shape("mnist", source, x, TRAIN_ROWS + TEST_ROWS, SIDE**2)
    check_range("mnist", source, "pixels", x, 0, 255)
    check_range("mnist", source, "labels", labels, 0, 9)
    images = x.astype(np.uint8).reshape(-1, SIDE, SIDE)
    test = TRAIN_ROWS
    return (images[:test], labels[:test]), (images[test:], labels[test:])
