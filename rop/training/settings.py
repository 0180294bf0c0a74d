"""Which optimizers and penalties have a compiled form, and their settings as the vector that compiled code reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from rop.errors import ArgumentError, ArgumentTypeError
from rop.kernels.rules import SENSE, STOP_RULES, Setting
from rop.optim import KFAC, SAM, SGD, SWA, Adam, EntropySGD, SpectralRadius

# By exact class: a subclass may have another step, which compiled code would not see.
RULES = (SGD, Adam)
COMPILED_PENALTIES = (SpectralRadius, type(None))


def has_compiled_form(optimizer: Any, regularizer: Any, device: str = "cpu") -> bool:
    """Whether steps with these settings can run in compiled code: SGD and Adam on both devices, and on the CPU what is
    made of them.

    >>> has_compiled_form(SGD(), SpectralRadius()), has_compiled_form(SGD(), SpectralRadius(solver="lanczos"))
    (True, False)
    >>> has_compiled_form(SWA(SAM(SGD())), None), has_compiled_form(SAM(SGD()), None, "cuda")
    (True, False)
    >>> [has_compiled_form(method(), None, device) for method in (EntropySGD, KFAC) for device in ("cpu", "cuda")]
    [True, False, True, False]
    """
    if type(_rule_on(device, optimizer)) not in RULES or type(regularizer) not in COMPILED_PENALTIES:
        return False
    return regularizer is None or regularizer.compiled


def innermost_rule(optimizer: Any) -> Any:
    """The optimizer whose rule makes the steps: SWA averages what its base does, SAM gives its base another gradient,
    and so do the inner steps of entropy-SGD and the factors of K-FAC with SGD.

    >>> innermost_rule(SWA(SAM(Adam(lr=0.1)))), innermost_rule(EntropySGD(steps=0)).nesterov
    (Adam(lr=0.1, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0), True)
    """
    if type(optimizer) in (SWA, SAM):
        return innermost_rule(optimizer.base)
    return optimizer.outer if type(optimizer) in (EntropySGD, KFAC) else optimizer


def natural_part(optimizer: Any) -> KFAC | None:
    """The K-FAC that makes the direction of the steps, if one does."""
    inner = optimizer.base if type(optimizer) is SWA else optimizer
    return inner if type(inner) is KFAC else None


def _rule_on(device: str, optimizer: Any) -> Any:
    """The optimizer of which a device must have the rule: a GPU has SGD and Adam by themselves only."""
    return optimizer if device == "cuda" else innermost_rule(optimizer)


def _of_direction(optimizer: Any) -> dict[Setting, float]:
    """The settings of SAM or of entropy-SGD's inner steps, if they are part of the optimizer."""
    inner = optimizer.base if type(optimizer) is SWA else optimizer
    if type(inner) is SAM:
        return {Setting.RADIUS: inner.radius, Setting.ADAPTIVE: inner.adaptive}
    if type(inner) is not EntropySGD or inner.steps == 0:
        return {}
    return {
        Setting.INNER_STEPS: inner.steps,
        Setting.INNER_RATE: inner.inner_lr,
        Setting.INNER_DECAY: inner.weight_decay,
        Setting.DEVIATION: inner.deviation,
        Setting.PART: 1 - inner.beta,
        Setting.SCOPE: inner.gamma,
        Setting.SCOPING: inner.scoping,
    }


def compiled_settings(owner: str, optimizer: Any, regularizer: Any, device: str = "cpu") -> np.ndarray:
    """The settings of a run as the vector that compiled code reads: a place for each ``Setting``, float64."""
    rule = _rule_on(device, optimizer)
    for value, kinds in ((rule, RULES), (regularizer, COMPILED_PENALTIES)):
        if type(value) not in kinds:
            raise ArgumentTypeError(
                f"{owner}: expected {' or '.join(kind.__name__ for kind in kinds)} itself, whose steps are compiled, "
                f"got {type(value).__name__}; rop.train and StepwiseSteps take it"
            )
    vector = np.zeros(len(Setting))
    of_optimizer = {**_of_rule(rule), **_of_direction(optimizer)}
    for setting, number in {**of_optimizer, **_of_penalty(owner, regularizer)}.items():
        vector[setting] = number
    return vector


def _of_rule(optimizer: SGD | Adam) -> dict[Setting, float]:
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
