"""Handwritten digits of 8×8 pixels, which come with scikit-learn."""

from __future__ import annotations

from rop.experiments.dataset import DataSet, part, scikit_learn, split
from rop.experiments.files import Folder
from rop.experiments.nets import digits_net
from rop.experiments.settings import Experiment, adam

__all__ = ["digits"]

EXPERIMENT = Experiment(digits_net, adam, mu=0.01, epochs=40, batch_size=32)


def digits(data: Folder = None) -> DataSet:
    """1,797 handwritten digits of 8×8 pixels in [0, 1], as images (1, 8, 8). They come with scikit-learn, so ``data``
    is not used.

    A fifth is the test part and a fifth of the rest the validation part, with equal shares of every digit.

    >>> x, y = digits().train
    >>> x.shape, y.shape
    ((1149, 1, 8, 8), (1149,))
    """
    x, y = scikit_learn("datasets").load_digits(return_X_y=True)
    x = x.reshape(-1, 1, 8, 8) / 16
    train, validation, test = (part(x[rows], y[rows]) for rows in split(len(y), stratify=y))
    return DataSet("digits", train, validation, test, classes=10)
