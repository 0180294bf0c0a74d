"""The paper's constructed test sets, Const1 and Const2 (its appendix "Constructed Data Sets").

An image of AT1 or AT2 is put into a bin by how near it is to the test images: by its smallest Euclidean distance to one
of them (Const1), or by its largest cosine (Const2). Five bins are left empty, and each of the others takes all its
images from AT1 or all from AT2, by the toss of a coin. The histogram is then as ragged as that of the images of GAN1,
which the paper set out to imitate; nothing of GAN1 enters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rop.arguments import check_choice, check_int
from rop.errors import ArgumentError
from rop.experiments.dataset import Part

EDGES = {
    "distance": np.arange(19.0),  # [0, 1), …, [17, 18)
    "cosine": np.arange(20, 41) / 40,  # [0.5, 0.525), …, [0.975, 1]
}
EMPTY = 5  # bins
BLOCK = 512  # images whose nearness is computed at once: 8 MB for 2,007 test images


@dataclass(frozen=True)
class Constructed:
    """A constructed set: its images and labels, and of each bin whether it was left empty (−1), filled from the first
    source (0) or from the second (1)."""

    images: np.ndarray
    labels: np.ndarray
    sources: tuple[int, ...]


def constructed(first: Part, second: Part, test: np.ndarray, measure: str, seed: int) -> Constructed:
    """Const1 (measure "distance") or Const2 ("cosine") from AT1, AT2 and the test images, all of normalised pixels.

    An image outside all bins is in no set. The last bin of the cosine includes its end, 1, so that images that
    augmentation has left as they were count; which of them are below 1 would be a matter of rounding.

    >>> test = np.array([[3.0, 4.0]])
    >>> near, far = np.array([[3.0, 4.5]]), np.array([[3.0, 9.5]])
    >>> found = constructed((near, np.array([1])), (far, np.array([2])), test, "distance", seed=3)
    >>> found.sources[0], found.sources[5], found.labels
    (-1, 1, array([2]))
    """
    edges = EDGES[check_choice("constructed", "measure", measure, tuple(EDGES))]
    rng = np.random.default_rng(check_int("constructed", "seed", seed, minimum=0))
    bins = len(edges) - 1
    sources = rng.integers(0, 2, bins)
    sources[rng.choice(bins, EMPTY, replace=False)] = -1
    chosen = [np.isin(_bins(nearness(x, test, measure), edges), np.flatnonzero(sources == k))
              for k, (x, _) in enumerate((first, second))]  # fmt: skip
    images = np.concatenate([x[rows] for (x, _), rows in zip((first, second), chosen, strict=True)])
    labels = np.concatenate([y[rows] for (_, y), rows in zip((first, second), chosen, strict=True)])
    return Constructed(images, labels, tuple(int(source) for source in sources))


def nearness(x: np.ndarray, test: np.ndarray, measure: str) -> np.ndarray:
    """Of each image in x (count, …) its smallest distance to a test image, or its largest cosine.

    >>> x, test = np.array([[1.0, 0.0]]), np.array([[0.0, 2.0], [1.0, 1.0]])
    >>> nearness(x, test, "distance"), nearness(x, test, "cosine").round(4)
    (array([1.]), array([0.7071]))
    """
    a, b = (np.asarray(part, np.float64).reshape(len(part), -1) for part in (x, test))
    if a.shape[1] != b.shape[1]:
        raise ArgumentError(f"nearness: expected images of {b.shape[1]} pixels, as those of the test, got {a.shape[1]}")
    if measure == "cosine":
        a, b = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (a, b))
        return np.concatenate([(a[k : k + BLOCK] @ b.T).max(axis=1) for k in range(0, len(a), BLOCK)])
    found = [_distances(a[k : k + BLOCK], b).min(axis=1) for k in range(0, len(a), BLOCK)]
    return np.concatenate(found)


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """All Euclidean distances, (rows of a, rows of b)."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(a, b))


def _bins(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The number of the bin of each value, −1 for one outside; a value that exceeds the largest cosine by rounding only
    is in the last bin."""
    found = np.digitize(values, edges) - 1
    if edges[-1] == 1:
        found[(values >= 1) & (values < 1 + 1e-9)] = len(edges) - 2
    found[found == len(edges) - 1] = -1
    return found
