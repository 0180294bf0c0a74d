"""Which optimizers and penalties have a compiled form, and their settings as the vector that compiled code reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from rop.errors import ArgumentError, ArgumentTypeError
from rop.kernels.rules import SENSE, STOP_RULES, Setting
from rop.optim import SGD, Adam, SpectralRadius

# By exact class: a subclass may have another step, which compiled code would not see.
COMPILED_OPTIMIZERS = (SGD, Adam)
COMPILED_PENALTIES = (SpectralRadius, type(None))


def has_compiled_form(optimizer: Any, regularizer: Any) -> bool:
    """Whether steps with these settings can run in compiled code.

    >>> has_compiled_form(SGD(), SpectralRadius()), has_compiled_form(SGD(), SpectralRadius(solver="lanczos"))
    (True, False)
    """
    if type(optimizer) not in COMPILED_OPTIMIZERS or type(regularizer) not in COMPILED_PENALTIES:
        return False
    return regularizer is None or regularizer.compiled


def compiled_settings(owner: str, optimizer: Any, regularizer: Any) -> np.ndarray:
    """The settings of a run as the vector that compiled code reads: a place for each ``Setting``, float64."""
    for value, kinds in ((optimizer, COMPILED_OPTIMIZERS), (regularizer, COMPILED_PENALTIES)):
        if type(value) not in kinds:
            raise ArgumentTypeError(
                f"{owner}: expected {' or '.join(kind.__name__ for kind in kinds)} itself, whose steps are compiled, "
                f"got {type(value).__name__}; rop.train and StepwiseSteps take it"
            )
    vector = np.zeros(len(Setting))
    for setting, number in {**_of_optimizer(optimizer), **_of_penalty(owner, regularizer)}.items():
        vector[setting] = number
    return vector


def _of_optimizer(optimizer: SGD | Adam) -> dict[Setting, float]:
    common: dict[Setting, float] = {Setting.DECAY: optimizer.weight_decay}
    if isinstance(optimizer, Adam):
        beta1, beta2 = optimizer.betas
        return common | {
            Setting.ADAM: True,
            Setting.BETA1: beta1,
            Setting.BETA2: beta2,
            Setting.EPSILON: optimizer.eps,
        }
    return common | {Setting.MOMENTUM: optimizer.momentum, Setting.NESTEROV: optimizer.nesterov}


def _of_penalty(owner: str, regularizer: SpectralRadius | None) -> dict[Setting, float]:
    if regularizer is None:
        return {}
    if not regularizer.compiled:
        raise ArgumentError(f"{owner}: expected solver 'power' or 'track', got {regularizer.solver!r}")
    track = regularizer.solver == "track"
    return {
        Setting.TARGET: regularizer.K,
        Setting.ITERATIONS: regularizer.products if track else regularizer.maxiter,
        Setting.SENSE: SENSE if track else 0,
        Setting.STOP: STOP_RULES.index(regularizer.stop),
        Setting.WARM: regularizer.warm_start,
        Setting.CLIP: regularizer.clip or 0,
        Setting.LIMIT: regularizer.limit or 0,
        Setting.SIGNED: regularizer.signed,
        Setting.CONSTANT: regularizer.start_vector == "constant",
    }
