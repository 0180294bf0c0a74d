"""rop.sklearn.RopClassifier: scikit-learn's own checks, then nets, the penalty, partial_fit, grids and copies."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import rop
from rop.sklearn import RopClassifier

IRIS = load_iris(return_X_y=True)
X = StandardScaler().fit_transform(IRIS[0])
Y = np.array(["setosa", "versicolor", "virginica"])[IRIS[1]]
DIGITS = load_digits(return_X_y=True)


def cnn(features: int, classes: int) -> rop.Graph:
    """For digits of 8×8 pixels."""
    return rop.Sequential(
        rop.Conv2d(1, 4, 3, padding=1),
        rop.BatchNorm2d(4),
        rop.ReLU(),
        rop.MaxPool2d(2),
        rop.Flatten(),
        rop.Linear(features, classes),
    )


@dataclass(frozen=True)
class OwnNet:
    """A function (n_features, n_classes) → net whose repr, a part of the names of tests, does not change."""

    def __call__(self, features: int, classes: int) -> rop.Graph:
        return rop.Sequential(rop.Linear(features, 10), rop.SiLU(), rop.Linear(10, classes))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [
        RopClassifier(),
        RopClassifier((20,), "tanh", optimizer=rop.SGD(momentum=0.9), mu=0.001, solver="track", dtype="float64"),
        RopClassifier(net=OwnNet(), lr=0.02),
    ]
)
def test_scikit_learns_own_checks(estimator: RopClassifier, check: Callable[[RopClassifier], None]) -> None:
    """All of them, with nothing expected to fail."""
    check(estimator)


# ------------------------------------------------------------------------------------------------------------- training
def test_fit_is_train() -> None:
    """The same bits as rop.train by hand."""
    model = RopClassifier((7,), "tanh", lr=0.02, batch_size=50, epochs=5, mu=0.01, solver="track", random_state=3)
    model.fit(X, Y)
    seed = int(np.random.RandomState(3).randint(2**31 - 1))
    net = rop.Sequential(rop.Linear(4, 7), rop.Tanh(), rop.Linear(7, 3))
    fit = rop.train(
        net,
        rop.CrossEntropy(),
        (X, IRIS[1]),
        epochs=5,
        batch_size=50,
        seed=seed,
        optimizer=rop.Adam(lr=0.02),
        regularizer=rop.SpectralRadius(mu=0.01, solver="track"),
    )
    np.testing.assert_array_equal(model.w_, fit.w)
    assert model.loss_curve_ == fit.column("loss").tolist() and model.n_iter_ == 5
    assert [row["rho"] for row in model.history_] == fit.column("rho").tolist()


def test_it_learns_as_much_as_scikit_learns_own() -> None:
    x, x_test, y, y_test = train_test_split(DIGITS[0] / 16, DIGITS[1], random_state=0)
    ours = RopClassifier((50,), epochs=60, random_state=0).fit(x, y).score(x_test, y_test)
    theirs = MLPClassifier((50,), max_iter=60, random_state=0, tol=0, n_iter_no_change=60).fit(x, y)
    assert ours > 0.95 and ours > theirs.score(x_test, y_test) - 0.015


def test_the_penalty_flattens() -> None:
    rho = {}
    for mu in (0.0, 0.05):
        model = RopClassifier((16,), lr=0.02, mu=mu, solver="track", random_state=0).fit(X, Y)
        rho[mu] = rop.spectral_radius(model.point(X, Y)).rho
        assert model.score(X, Y) > 0.9
    assert rho[0.05] < 0.7 * rho[0.0]


@pytest.mark.parametrize(
    "optimizer", ["adam", rop.SGD(lr=rop.inverse_epoch(0.2), momentum=0.9), "sam", "swa", "kfac"], ids=str
)
def test_passes_of_partial_fit_are_epochs_of_fit(optimizer: Any) -> None:
    """Bit for bit: the optimizer's averages, its schedules and the order of samples continue."""
    given: dict[str, Any] = {"optimizer": optimizer, "mu": 0.01, "random_state": 0}
    whole = RopClassifier((8,), epochs=3, **given).fit(X, Y)
    model = RopClassifier((8,), epochs=99, **given)
    for _ in range(3):
        model.partial_fit(X, Y, classes=np.unique(Y))
    np.testing.assert_array_equal(model.w_, whole.w_)
    assert model.n_iter_ == 3 and model.loss_curve_ == whole.loss_curve_


def test_partial_fit_on_a_stream_with_classes_that_come_late() -> None:
    model = RopClassifier((16,), lr=0.02, random_state=0)
    order = np.argsort(Y, kind="stable").reshape(3, 50)
    for _ in range(60):
        for rows in order[:, np.random.default_rng(0).permutation(50)].T.reshape(5, 30):
            model.partial_fit(X[rows], Y[rows], classes=np.unique(Y))
    assert model.score(X, Y) > 0.95 and model.n_iter_ == 300
    early = RopClassifier(random_state=0).partial_fit(X[:50], Y[:50], classes=np.unique(Y))
    assert early.predict_proba(X).shape == (150, 3)


def test_fit_forgets_and_partial_fit_goes_on_from_fit() -> None:
    model = RopClassifier((8,), epochs=4, random_state=0).fit(X, Y)
    w = model.w_
    assert not np.array_equal(model.partial_fit(X, Y).w_, w) and model.n_iter_ == 5
    np.testing.assert_array_equal(model.fit(X, Y).w_, w)
    assert model.n_iter_ == 4


def test_early_stopping_keeps_the_best() -> None:
    model = RopClassifier(
        (32,), lr=0.05, early_stopping=True, n_iter_no_change=4, validation_fraction=0.2, epochs=200, random_state=0
    ).fit(X, Y)
    accuracy = [row["valid_accuracy"] for row in model.history_]
    best = int(np.argmax(accuracy))
    assert model.n_iter_ == best + 1 + 4 < 200
    shorter = clone(model).set_params(epochs=best + 1).fit(X, Y)
    np.testing.assert_array_equal(model.w_, shorter.w_)


@pytest.mark.parametrize(("samples", "batch"), [(1, 1), (100, 100), (128, 128), (129, 64), (150, 75), (1000, 125)])
def test_auto_batches_leave_few_samples_out(samples: int, batch: int) -> None:
    assert RopClassifier()._batch_size(samples) == batch


# ----------------------------------------------------------------------------------------------------------------- nets
@pytest.mark.parametrize("net", [cnn, cnn(64, 10)], ids=["function", "net"])
def test_a_cnn_of_your_own(net: Any) -> None:
    x, y = DIGITS[0] / 16, DIGITS[1]
    model = RopClassifier(net=net, input_shape=(1, 8, 8), lr=0.01, epochs=8, random_state=0)
    assert cross_val_score(model, x, y, cv=3).min() > 0.9
    model.fit(x, y)
    expected = model.net_.predict(model.w_, x.astype("f4").reshape(-1, 1, 8, 8), model.state_)
    np.testing.assert_array_equal(model.predict(x), expected.argmax(axis=1))
    assert set(model.state_) == {"1.running_mean", "1.running_var"}
    assert np.isclose(model.point(x, y).loss, -model.predict_log_proba(x)[np.arange(len(y)), y].mean(), rtol=1e-4)


@pytest.mark.parametrize("activation", ["relu", "leakyrelu", "gelu", np.str_("silu"), rop.GELU(approximate="tanh")])
def test_activations(activation: Any) -> None:
    model = RopClassifier((5, 4), activation, epochs=1).fit(X, Y)
    assert model.net_.size == 4 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3
    assert len(model.net_.nodes) == 1 + 5


def test_precision() -> None:
    for dtype in ("float32", np.float64):
        model = RopClassifier((5,), epochs=2, dtype=dtype, random_state=0).fit(X, Y)
        assert model.w_.dtype == model.point(X, Y).grad.dtype == np.dtype(dtype)
        p = model.predict_proba(X)
        assert p.dtype == np.float64
        np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)


# -------------------------------------------------------------------------------------------- pipelines, grids, pickles
@pytest.mark.thorough
def test_grid_over_mu_and_k_in_two_processes() -> None:
    """The paper's informal grid search; a μ of 0 is a run without the penalty."""
    pipe = make_pipeline(StandardScaler(), RopClassifier((16,), lr=0.02, epochs=40, solver="track", random_state=0))
    values = {"ropclassifier__mu": [0, 0.01, 0.1], "ropclassifier__K": np.array([0.0, 2.0])}
    grid = GridSearchCV(pipe, values, cv=3, n_jobs=2, error_score="raise").fit(IRIS[0], Y)
    alone = GridSearchCV(pipe, values, cv=3).fit(IRIS[0], Y)
    np.testing.assert_array_equal(grid.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"])
    assert grid.best_score_ > 0.9 and grid.score(IRIS[0], Y) > 0.9
    assert "rho" not in RopClassifier(mu=0, epochs=1).fit(X, Y).history_[0]


def test_an_error_comes_back_from_a_process() -> None:
    """TrainingStopped carries a fit, and both must survive the way."""
    model = RopClassifier((16,), optimizer="sgd", lr=1e30, mu=1e30, epochs=20, random_state=0)
    with pytest.raises(rop.TrainingStopped, match="is not finite") as caught:
        cross_val_score(model, X, Y, n_jobs=2, error_score="raise")
    assert isinstance(caught.value.fit, rop.Fit)


def test_copies_predict_the_same_bits(tmp_path: Any) -> None:
    x, y = DIGITS[0][:300] / 16, DIGITS[1][:300]
    model = RopClassifier(net=cnn, input_shape=(1, 8, 8), epochs=2, random_state=0).fit(x, y)
    joblib.dump(model, tmp_path / "model.joblib")
    for again in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
        np.testing.assert_array_equal(again.partial_fit(x, y).w_, clone(model).fit(x, y).partial_fit(x, y).w_)
    assert not hasattr(clone(model), "w_")


def test_feature_names() -> None:
    frame = pytest.importorskip("pandas").DataFrame(X, columns=list("abcd"))
    model = RopClassifier((5,), epochs=1).fit(frame, Y)
    assert model.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("dcba")])


def test_progress_is_shown_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    RopClassifier((5,), epochs=2, verbose=True).fit(X, Y)
    assert "epoch 2/2" in shown.getvalue()


# ------------------------------------------------------------------------------------------------------------- mistakes
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_layer_sizes": 100}, r"hidden_layer_sizes must be a tuple such as \(100,\), got 100"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be at least 1, got 0"),
        ({"activation": "swish"}, "activation must be one of 'relu', .*'gelu'.*, got 'swish'"),
        ({"net": 3}, "net must be a rop.Sequential, a rop.Graph or a function .*, got int"),
        ({"net": lambda features, classes: None}, "that returns one, got NoneType"),
        ({"net": cnn(4, 10)}, r"not fit samples of shape \(4,\): layer 0 .*; input_shape says"),
        ({"net": rop.Sequential(rop.Linear(4, 2))}, r"net must give 3 numbers .*got an output of shape \(2,\)"),
        ({"input_shape": (1, 3)}, r"as many numbers as X has features, 4, got \(1, 3\)"),
        ({"optimizer": "rmsprop"}, "optimizer must be one of 'adam', 'entropy-sgd', 'kfac', 'sam', 'sgd', 'swa', got"),
        ({"lr": "fast"}, "lr must be a real number"),
        ({"batch_size": "all"}, "batch_size must be one of 'auto', got 'all'"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"mu": -1.0}, "mu must be at least 0"),
        ({"solver": "magic"}, "solver must be one of 'power', 'track'"),
        ({"solver_options": {"speed": 9}}, "solver_options must be some of clip, .*warm_start, got speed"),
        ({"early_stopping": True, "n_iter_no_change": 0}, "n_iter_no_change must be at least 1"),
        ({"dtype": "float16"}, "dtype must be float32 or float64"),
        ({"random_state": "seed"}, "cannot be used to seed"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        RopClassifier(**settings).fit(X, Y)


def test_wrong_calls() -> None:
    with pytest.raises(rop.ArgumentError, match="first call of partial_fit needs classes"):
        RopClassifier().partial_fit(X, Y)
    model = RopClassifier((5,), epochs=1)
    for method in (model.predict, model.predict_proba, model.predict_log_proba):
        with pytest.raises(NotFittedError):
            method(X)
    with pytest.raises((NotFittedError, AttributeError)):
        _ = model.loss_curve_
    model.fit(X, Y)
    with pytest.raises(rop.ArgumentError, match=r"y must have the classes .* only, got 'daisy'"):
        model.partial_fit(X, np.where(Y == "setosa", "daisy", Y))
    with pytest.raises(rop.ArgumentError, match=r"expected the classes of the first call, \['setosa'"):
        model.partial_fit(X, Y, classes=["setosa", "daisy"])
    with pytest.raises(rop.ArgumentError, match=r"expected optimizer=rop\.Adam"):
        model.set_params(optimizer="sgd").partial_fit(X, Y)
    with pytest.raises(ValueError, match="Found array with dim"):
        model.predict(X.reshape(-1, 2, 2))
