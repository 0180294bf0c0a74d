"""Targets of losses: how labels, weights and probabilities are stored, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from rop import layers
from rop.errors import ArgumentError, ArgumentTypeError
from rop.layers import LOSSES, MSE, NLL, BCEWithLogits, CrossEntropy


def test_labels_and_weights() -> None:
    targets = CrossEntropy(weight=[1.0, 2.0, 4.0]).targets([2, -100, 1], 3, (3,), np.float32)
    assert targets.dense is None and targets.labels is not None
    assert targets.labels.dtype == np.int64 and targets.labels.tolist() == [[2], [0], [1]]
    assert targets.weight.dtype == np.float32 and targets.weight.tolist() == [[4], [0], [2]]
    assert targets.total == 6


def test_pixels_are_the_second_axis() -> None:
    y = np.arange(12).reshape(2, 2, 3) % 4
    targets = NLL().targets(y.astype(np.uint8), 2, (4, 2, 3), np.float64)
    assert targets.labels is not None and np.array_equal(targets.labels, y.reshape(2, 6))
    assert targets.weight.shape == (2, 6) and targets.total == 12


def test_label_smoothing_spreads_class_weights() -> None:
    targets = CrossEntropy([1.0, 0.0, 4.0], label_smoothing=0.3).targets([2, 1, -100], 3, (3,), np.float64)
    assert targets.labels is None and targets.dense is not None
    np.testing.assert_allclose(targets.dense, [[0.1, 0, 2.8 + 0.4], [0.1, 0, 0.4], [0.0, 0, 0]])
    np.testing.assert_allclose(targets.weight, [[3.3], [0.5], [0.0]])
    assert targets.total == 4  # the weights of the true classes, 4 and 0


NAN = float("nan")


def test_probability_targets() -> None:
    t = np.array([[0.25, 0.75], [2.0, 0.0]], np.float32)
    targets = CrossEntropy([1.0, 2.0], label_smoothing=0.5).targets(t, 2, (2,), np.float32)
    assert targets.dense is not None and targets.dense.dtype == np.float32
    np.testing.assert_allclose(targets.dense, [[0.375, 1.25], [1.25, 0.5]])
    assert targets.total == 2


def test_dense_targets_are_a_copy_in_the_working_dtype() -> None:
    y = np.array([[0.0, 1.0, 0.5]])
    targets = MSE().targets(y, 1, (3,), np.float32)
    y[:] = 9
    assert targets.dense is not None and targets.dense.dtype == np.float32
    assert targets.dense.tolist() == [[0, 1, 0.5]] and targets.total == 3
    assert targets.weight.tolist() == [[1]]


def test_binary_targets_count_for_ones_and_for_zeros_and_unknown_ones_for_nothing() -> None:
    y = np.array([[0.0, 1.0, 0.5], [NAN, 1.0, NAN]])
    targets = BCEWithLogits(pos_weight=[1.0, 3.0, 2.0]).targets(y, 2, (3,), np.float32)
    assert targets.dense is not None and targets.dense.dtype == np.float32
    assert targets.dense.tolist() == [[[0, 3, 1], [1, 0, 0.5]], [[0, 3, 0], [0, 0, 0]]]
    assert targets.shares.tolist() == [3, 1] and targets.scale("mean") == 0.25 and targets.scale("sum") == 1
    np.testing.assert_allclose(targets.weight, [[5.5 / 3], [1.0]])


def test_a_number_as_positive_weight_holds_for_all_outputs_and_images_have_one_per_channel() -> None:
    ones = np.ones((1, 2, 3, 3))
    for weight, expected in ((4.0, [4, 4]), ([4.0], [4, 4]), (np.array([4.0, 5.0]).reshape(2, 1, 1), [4, 5])):
        dense = BCEWithLogits(pos_weight=weight).targets(ones, 1, (2, 3, 3), np.float64).dense
        assert dense is not None and (dense[0, 0] == np.reshape(expected, (2, 1, 1))).all() and not dense[0, 1].any()


@pytest.mark.parametrize(
    "weight", [np.ones(2), np.ones(4), np.ones((3, 3)), np.ones(0)], ids=lambda one: str(one.shape)
)
def test_positive_weights_of_the_wrong_shape_are_refused_with_the_right_one(weight: np.ndarray) -> None:
    with pytest.raises(ArgumentError, match=r"BCEWithLogits: pos_weight .* shape \(3,\) for this net, got shape \("):
        BCEWithLogits(pos_weight=weight).targets(np.zeros((1, 3)), 1, (3,), np.float32)


def test_a_sum_over_left_out_labels_is_fine_but_a_mean_is_not() -> None:
    assert NLL(reduction="sum").targets([-100], 1, (3,), np.float32).total == 0
    with pytest.raises(ArgumentError, match="NLL: expected at least one label"):
        NLL().targets([-100], 1, (3,), np.float32)


@pytest.mark.parametrize(
    ("loss", "y", "error", "message"),
    [
        (CrossEntropy(), [0, 3], ArgumentError, "labels from 0 to 2"),
        (CrossEntropy(), [0, -1], ArgumentError, "got labels from -1 to 0"),
        (CrossEntropy(), np.array([0, 2**64 - 1], np.uint64), ArgumentError, "labels from 0 to 2"),
        (CrossEntropy(), [0.0, 1.0], ArgumentTypeError, "integers"),
        (CrossEntropy(), [True, False], ArgumentTypeError, "integers"),
        (CrossEntropy(), ["a", "b"], ArgumentTypeError, "integers"),
        (CrossEntropy(), [0j, 1j], ArgumentTypeError, "integers"),
        (CrossEntropy(), np.array([0, None]), ArgumentTypeError, "integers"),
        (CrossEntropy(), [[0], [1, 2]], ArgumentTypeError, "array"),
        (CrossEntropy(), [0, 1, 2], ArgumentError, r"shape \(2,\), got \(3,\)"),
        (CrossEntropy(), [[0], [1]], ArgumentError, r"y\.reshape\(\(2,\)\)"),
        (CrossEntropy(), [[0, 1, 0], [0, 0, 1]], ArgumentError, "argmax"),
        (CrossEntropy(), np.ones((2, 4)), ArgumentError, r"outputs' shape \(2, 3\), got \(2, 4\)"),
        (CrossEntropy(), [[0.5, 0.5, -0.1]] * 2, ArgumentError, "at least 0"),
        (CrossEntropy(), [[0.5, 0.5, NAN]] * 2, ArgumentError, "finite"),
        (CrossEntropy(ignore_index=1), np.ones((2, 3)), ArgumentError, "ignore_index"),
        (CrossEntropy([1.0, 2.0]), [0, 1], ArgumentError, "one weight per class, 3"),
        (CrossEntropy(), [-100, -100], ArgumentError, "at least one label"),
        (NLL(), np.ones((2, 3)), ArgumentTypeError, "integers"),
        (NLL([1.0, 2.0]), [0, 1], ArgumentError, "one weight per class, 3"),
        (MSE(), np.ones(3), ArgumentError, r"outputs' shape \(2, 3\), got \(3,\)"),
        (MSE(), np.ones((2, 1)), ArgumentError, "broadcast"),
        (MSE(), np.ones((2, 3), int), ArgumentTypeError, "float32 or float64, got int"),
        (MSE(), np.full((2, 3), np.inf), ArgumentError, "finite"),
        (MSE(), np.full((2, 3), 1e300), ArgumentError, "NaN or Inf in float32"),
        (BCEWithLogits(), np.full((2, 3), 1.5), ArgumentError, r"\[0, 1\]"),
        (BCEWithLogits(), np.array([[NAN, 1.5, 0], [0, 0, 0]]), ArgumentError, r"\[0, 1\], or NaN .* from 0 to 1.5"),
        (BCEWithLogits(), np.full((2, 3), np.inf), ArgumentError, "finite targets, or NaN"),
        (BCEWithLogits(), np.full((2, 3), -0.5), ArgumentError, r"\[0, 1\]"),
        (BCEWithLogits(), np.ones((2, 3), bool), ArgumentTypeError, "float32 or float64, got bool"),
    ],
)
def test_targets_refused(loss: layers.Loss, y: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        loss.targets(y, 2, (3,), np.float32)
    assert str(caught.value).startswith(f"{type(loss).__name__}: ")


@pytest.mark.parametrize("kind", LOSSES.values())
def test_an_empty_batch_is_refused(kind: type[layers.Loss]) -> None:
    with pytest.raises(ArgumentError, match="empty batch"):
        kind().targets(np.zeros((0,), int), 0, (3,), np.float32)
