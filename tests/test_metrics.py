"""The area under the ROC curve, against scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import rop
from rop.metrics import auc, auc_by_label, mean_auc
from tests.helpers.strategies import seeds


@given(seed=seeds, samples=st.integers(2, 60), levels=st.sampled_from([2, 5, 1000]), unknown=st.floats(0, 0.6))
def test_areas_agree_with_scikit_learn(seed: int, samples: int, levels: int, unknown: float) -> None:
    """Few levels of the scores make ties. Unknown targets are left out for scikit-learn, which does not know them."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (samples, 4)) / levels
    targets = rng.integers(0, 2, (samples, 4)).astype(np.float32)
    targets[:2, 0], targets[rng.random(targets.shape) < unknown] = (0, 1), np.nan
    targets[:2, 0] = 0, 1  # at least one column has both classes
    expected = []
    for s, t in zip(scores.T, targets.T, strict=True):
        known = ~np.isnan(t)
        both = len(np.unique(t[known])) == 2
        expected.append(roc_auc_score(t[known], s[known]) if both else np.nan)
        if both:
            assert auc(s, t) == pytest.approx(expected[-1], abs=1e-12)
    np.testing.assert_allclose(auc_by_label(scores, targets), expected, atol=1e-12)
    assert mean_auc(scores, targets) == pytest.approx(np.nanmean(expected), abs=1e-12)


def test_scores_of_infinite_size_and_labels_as_integers_are_fine() -> None:
    assert auc([-np.inf, 0.0, np.inf], [False, True, True]) == 1 and auc([1, 1, 1], [0, 1, 1]) == 0.5


ZEROS = np.zeros((3, 2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: auc([0.1, 0.2], [1, 1]), ("auc", "both classes", "2 ones and 0 zeros")),
        (lambda: auc([0.1, 0.2], [1, np.nan]), ("1 ones and 0 zeros",)),
        (lambda: auc(ZEROS, ZEROS), ("(N,)", "(3, 2)")),
        (lambda: mean_auc(ZEROS, ZEROS), ("mean_auc", "both classes", "2 columns", "more samples")),
        (lambda: mean_auc(ZEROS, ZEROS[:, :1]), ("(N, K)", "(3, 2)", "(3, 1)")),
        (lambda: mean_auc(ZEROS[0], ZEROS[0]), ("(N, K)", "(2,)")),
        (lambda: mean_auc(ZEROS * np.nan, ZEROS), ("scores without NaN", "6")),
        (lambda: mean_auc(ZEROS, ZEROS + 2), ("0, 1 or NaN", "got 2")),
        (lambda: mean_auc(ZEROS.astype(str), ZEROS), ("scores as numbers",)),
    ],
)
def test_what_cannot_be_measured_is_refused(call: Any, words: tuple[str, ...]) -> None:
    with pytest.raises((rop.ArgumentError, rop.ArgumentTypeError)) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
