"""A scikit-learn classifier on top of ``rop.train``: networks with the spectral radius as a penalty, in pipelines and
grid searches.

>>> from sklearn.datasets import load_iris
>>> from sklearn.model_selection import GridSearchCV
>>> from sklearn.pipeline import make_pipeline
>>> from sklearn.preprocessing import StandardScaler
>>> x, y = load_iris(return_X_y=True)
>>> pipe = make_pipeline(StandardScaler(), RopClassifier((16,), lr=0.01, solver="track", random_state=0))
>>> grid = GridSearchCV(pipe, {"ropclassifier__mu": [0, 0.01], "ropclassifier__K": [0, 1]}, cv=3).fit(x, y)
>>> bool(grid.best_score_ > 0.9)
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy.special import log_softmax, softmax

from rop.errors import ArgumentError, ArgumentTypeError, missing_package

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.model_selection import train_test_split
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise missing_package("rop.sklearn", "scikit-learn (1.6 or newer)", "sklearn", error) from error

from rop.arguments import as_array, check_choice, check_dtype, check_int
from rop.graph import Graph, Sequential
from rop.layers import ACTIVATIONS, CrossEntropy, Identity, Layer, LeakyReLU, Linear, ReLU
from rop.objective import Objective, Point
from rop.optim import Optimizer, Schedule, SpectralRadius, optimizers, with_rate
from rop.training.fit import Fit, Row
from rop.training.run import train

__all__ = ["RopClassifier"]

OWNER = "RopClassifier"
USUAL_BATCH = 128
HIDDEN_ACTIVATIONS = {kind.__name__.lower(): kind for kind in (ReLU, LeakyReLU, Identity, *ACTIVATIONS.values())}
LARGEST_SEED = 2**31 - 1


class RopClassifier(ClassifierMixin, BaseEstimator):
    """A neural network trained by min f(w) + μ·max(0, ρ(w) − K), f the cross-entropy, ρ the spectral radius of its
    Hessian on a batch.

    Parameters are scikit-learn's where it has them (MLPClassifier), else those of ``rop.train``.

    Args:
        hidden_layer_sizes: widths of the MLP's hidden layers; () is softmax regression.
        activation: its activation: "relu", "leakyrelu", "tanh", "sigmoid", "softplus", "silu", "gelu", "identity", or
            a layer such as rop.GELU(approximate="tanh").
        net: instead of an MLP, a net of your own, or a function (n_features, n_classes) → net. Its output is one logit
            for each class.
        input_shape: shape of one sample as the net sees it, such as (1, 28, 28); X stays (n_samples, n_features).
        optimizer: "adam", "sgd", "sam", "swa", "entropy-sgd", "kfac", or an object such as rop.SGD(momentum=0.9) or
            rop.SAM(rop.Adam()); see rop.optim.Optimizer.
        lr: learning rate, a number or a schedule; None: the optimizer's own, or that of its base.
        batch_size: samples per step; "auto" is about 128, so that no epoch leaves out more than a few samples.
        epochs: passes of ``fit`` over the data; ``partial_fit`` makes one.
        mu, K, solver: the penalty, see rop.SpectralRadius; mu=0 for none.
        solver_options: a dict of its further settings, such as {"clip": 1.0}.
        early_stopping: keep ``validation_fraction`` of the samples apart, keep the parameters with the best accuracy on
            them, and stop when it has not risen for ``n_iter_no_change`` epochs.
        dtype: precision, float32 or float64.
        random_state: seed of the first parameters, the order of the samples and the split for early stopping.
        verbose: show a progress bar (needs rich: pip install 'rop[train]').

    Attributes:
        classes_, n_features_in_, feature_names_in_: as in every scikit-learn classifier.
        net_, w_, state_: the net, its parameters and running statistics.
        n_iter_: number of epochs.
        history_: a dict for each epoch, see rop.Fit; loss_curve_: their losses.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> model = RopClassifier((8,), lr=0.02, mu=0.001, random_state=0).fit(x, y)
    >>> bool(model.score(x, y) > 0.95), model.predict_proba(x[:2]).shape, model.n_iter_
    (True, (2, 3), 100)

    The curvature of a fitted model, on any data:

    >>> import rop
    >>> bool(rop.spectral_radius(model.point(x, y)).rho > 0)
    True
    """

    classes_: np.ndarray
    n_features_in_: int
    net_: Graph
    w_: np.ndarray
    state_: dict[str, np.ndarray]
    n_iter_: int
    history_: list[Row]

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (100,),
        activation: str | Layer = "relu",
        *,
        net: Graph | Callable[[int, int], Graph] | None = None,
        input_shape: tuple[int, ...] | None = None,
        optimizer: str | Optimizer = "adam",
        lr: Schedule | None = None,
        batch_size: int | str = "auto",
        epochs: int = 100,
        mu: Schedule = 0.0,
        K: float = 0.0,
        solver: str = "power",
        solver_options: dict[str, Any] | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        dtype: DTypeLike = "float32",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.net = net
        self.input_shape = input_shape
        self.optimizer = optimizer
        self.lr = lr
        self.batch_size = batch_size
        self.epochs = epochs
        self.mu = mu
        self.K = K
        self.solver = solver
        self.solver_options = solver_options
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    # --------------------------------------------------------------------------------------------------------- training
    def fit(self, X: ArrayLike, y: ArrayLike) -> RopClassifier:
        """Trains from the beginning: X (n_samples, n_features), y (n_samples,) labels of any kind."""
        samples, targets = self._validated(X, y, reset=True)
        self.classes_, labels = np.unique(targets, return_inverse=True)
        self._begin()
        options: dict[str, Any] = {}
        if self.early_stopping:
            samples, held_out, labels, held_out_labels = train_test_split(
                samples, labels, test_size=self.validation_fraction, stratify=labels, random_state=self._seed
            )
            options = {"validation": (self._shaped(held_out), held_out_labels), "callbacks": [self._patience()]}
        self._train(samples, labels, self.epochs, **options)
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> RopClassifier:
        """Trains for one epoch on these samples and continues where the last call ended, with the optimizer's averages.

        The first call needs ``classes``, all labels that will ever occur.

        >>> import numpy as np
        >>> x, y = np.array([[-1.0], [1.0]] * 64), np.array(["minus", "plus"] * 64)
        >>> model = RopClassifier((), optimizer="sgd", random_state=0)
        >>> for _ in range(10):
        ...     model = model.partial_fit(x, y, classes=["minus", "plus"])
        >>> model.score(x, y), model.n_iter_
        (1.0, 10)
        """
        first = not self.__sklearn_is_fitted__()
        samples, targets = self._validated(X, y, reset=first)
        if first:
            if classes is None:
                raise ArgumentError(f"{OWNER}: the first call of partial_fit needs classes, all labels there will be")
            self.classes_ = np.unique(classes)
            self._begin()
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ArgumentError(
                f"{OWNER}: expected the classes of the first call, {self.classes_.tolist()}, got "
                f"{np.unique(classes).tolist()}"
            )
        self._train(samples, self._labels(targets), epochs=1, start=self._fit)
        return self

    def _validated(self, X: ArrayLike, y: ArrayLike, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        _refuse_masked(X=X, y=y)
        samples, targets = validate_data(self, X, y, reset=reset, dtype=check_dtype(OWNER, self.dtype))
        check_classification_targets(targets)
        return samples, targets

    def _begin(self) -> None:
        """A new net and a new seed."""
        self._seed = int(check_random_state(self.random_state).randint(LARGEST_SEED))
        self._fit: Fit | None = None
        self.history_ = []
        self.net_ = self._made_net()

    def _train(self, X: np.ndarray, labels: np.ndarray, epochs: int, **options: Any) -> None:
        optimizer = self._made_optimizer()
        fit = train(
            self.net_,
            CrossEntropy(),
            (self._shaped(X), labels),
            epochs=epochs,
            seed=self._seed,
            batch_size=self._batch_size(len(X)),
            optimizer=optimizer,
            regularizer=self._made_penalty(),
            dtype=self.dtype,
            progress=bool(self.verbose),
            **options,
        )
        self.w_, self.state_ = fit.w, fit.state
        self.history_ = [*self.history_, *fit.history]
        self.n_iter_ = len(self.history_)
        # partial_fit continues from what predict uses, unless that is an average beside the iterates
        averaged = hasattr(optimizer, "result")
        self._fit = fit if averaged else replace(fit, w_last=fit.w, state_last=fit.state)

    def _patience(self) -> Callable[[Row, Fit], bool]:
        patience = check_int(OWNER, "n_iter_no_change", self.n_iter_no_change)
        return lambda row, fit: row["epoch"] - fit.best_epoch >= patience

    def _batch_size(self, samples: int) -> int:
        if isinstance(self.batch_size, str):
            check_choice(OWNER, "batch_size", self.batch_size, ("auto",))
            return samples // ceil(samples / USUAL_BATCH)
        return min(check_int(OWNER, "batch_size", self.batch_size), samples)

    # --------------------------------------------------------------------------------------- net, optimizer and penalty
    def _made_net(self) -> Graph:
        features, classes = self.n_features_in_, len(self.classes_)
        net = self._mlp() if self.net is None else self.net
        if not isinstance(net, Graph):
            net = net(features, classes) if callable(net) else net
        if not isinstance(net, Graph):
            raise ArgumentTypeError(
                f"{OWNER}: net must be a rop.Sequential, a rop.Graph or a function (n_features, "
                f"n_classes) that returns one, got {type(net).__name__}"
            )
        if self.input_shape is not None and not isinstance(self.input_shape, (tuple, list)):
            raise ArgumentTypeError(
                f"{OWNER}: input_shape must be a tuple such as (1, 28, 28), got {self.input_shape!r}"
            )
        if (
            self.input_shape is not None
            and prod(check_int(OWNER, "input_shape", size) for size in self.input_shape) != features
        ):
            raise ArgumentError(
                f"{OWNER}: input_shape must have as many numbers as X has features, {features}, got "
                f"{tuple(self.input_shape)}"
            )
        try:
            output = net.shapes(self._sample_shape)[net.output]
        except ArgumentError as error:
            raise ArgumentError(
                f"{OWNER}: net does not fit samples of shape {self._sample_shape}: {error}; "
                "input_shape says what a sample looks like"
            ) from error
        if output != (classes,):
            raise ArgumentError(
                f"{OWNER}: net must give {classes} numbers for a sample, a logit for each of the "
                f"{classes} classes in y, got an output of shape {output}"
            )
        return net

    def _mlp(self) -> Graph:
        sizes = self.hidden_layer_sizes
        if not isinstance(sizes, (tuple, list)):
            raise ArgumentTypeError(f"{OWNER}: hidden_layer_sizes must be a tuple such as (100,), got {sizes!r}")
        layers, width = list[Layer](), self.n_features_in_
        for size in sizes:
            layers += [Linear(width, check_int(OWNER, "hidden_layer_sizes", size)), self._made_activation()]
            width = int(size)
        return Sequential(*layers, Linear(width, len(self.classes_)))

    def _made_activation(self) -> Layer:
        if isinstance(self.activation, Layer):
            return self.activation
        name = check_choice(OWNER, "activation", _plain(self.activation), tuple(HIDDEN_ACTIVATIONS))
        return HIDDEN_ACTIVATIONS[name]()

    def _made_optimizer(self) -> Optimizer:
        made: Any = self.optimizer
        if isinstance(made, str) or not isinstance(made, Optimizer):
            known = optimizers()
            made = known[check_choice(OWNER, "optimizer", _plain(made), tuple(sorted(known)))]()
        if self.lr is None:
            return made
        if not hasattr(made, "__dataclass_fields__"):
            raise ArgumentTypeError(
                f"{OWNER}: lr replaces that of an optimizer which is a dataclass, got {type(made).__name__}; give it "
                "its own lr and leave lr=None"
            )
        return with_rate(made, self.lr)

    def _made_penalty(self) -> SpectralRadius | None:
        options = {} if self.solver_options is None else self.solver_options
        if not isinstance(options, dict):
            raise ArgumentTypeError(f"{OWNER}: solver_options must be a dict such as {{'clip': 1.0}}, got {options!r}")
        known = {field.name for field in fields(SpectralRadius)} - {"mu", "K", "solver"}
        if unknown := sorted(set(options) - known):
            raise ArgumentError(f"{OWNER}: solver_options must be some of {', '.join(sorted(known))}, got {unknown[0]}")
        penalty = SpectralRadius(mu=self.mu, K=self.K, solver=_plain(self.solver), **options)
        return penalty if callable(self.mu) or self.mu else None

    # ------------------------------------------------------------------------------------------------------- predicting
    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of every sample."""
        best = self._logits(X).argmax(axis=1)
        return self.classes_[best]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities (n_samples, n_classes), float64."""
        return softmax(self._logits(X), axis=1)

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """Their logarithms, also where the probabilities themselves are too small for a float64."""
        return log_softmax(self._logits(X), axis=1)

    def _logits(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self)
        _refuse_masked(X=X)
        samples = validate_data(self, X, reset=False, dtype=self.w_.dtype)
        return self.net_.predict(self.w_, self._shaped(samples), self.state_).astype(np.float64)

    def point(self, X: ArrayLike, y: ArrayLike) -> Point:
        """The loss of the fitted net on these samples with its derivatives, say for ``rop.spectral_radius``; batchnorm
        uses its running statistics, as in predict."""
        check_is_fitted(self)
        samples, targets = self._validated(X, y, reset=False)
        f = Objective(
            self.net_,
            CrossEntropy(),
            self._shaped(samples),
            self._labels(targets),
            dtype=self.w_.dtype,
            training=False,
            state=self.state_,
        )
        return f.at(self.w_)

    @property
    def loss_curve_(self) -> list[float]:
        """The mean loss of the steps of every epoch."""
        check_is_fitted(self)
        return [row["loss"] for row in self.history_]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "w_")

    # ---------------------------------------------------------------------------------------------------- small helpers
    @property
    def _sample_shape(self) -> tuple[int, ...]:
        return (self.n_features_in_,) if self.input_shape is None else tuple(self.input_shape)

    def _shaped(self, X: np.ndarray) -> np.ndarray:
        return X.reshape(len(X), *self._sample_shape)

    def _labels(self, y: np.ndarray) -> np.ndarray:
        """y as indices into ``classes_``."""
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ArgumentError(
                f"{OWNER}: y must have the classes {self.classes_.tolist()} only, got {unknown[0].item()!r}"
            )
        return np.searchsorted(self.classes_, y)


def _refuse_masked(**arrays: ArrayLike) -> None:
    """Refuse masked arrays: scikit-learn would use what is under the mask."""
    for name, array in arrays.items():
        if isinstance(array, np.ma.MaskedArray):
            as_array(f"{OWNER}: {name}", array)


def _plain(name: Any) -> Any:
    """A str instead of a NumPy string, which grids of parameters make of one."""
    return str(name) if isinstance(name, str) else name
