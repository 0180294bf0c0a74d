"""`rop demo`: checks derivatives on an embedded data set, then trains a net with and without the penalty."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

import numpy as np

import rop
from rop.commands.common import FAILED, OK, Commands, add_command, positive


def add(commands: Commands) -> None:
    """The parser of `rop demo`."""
    parser = add_command(
        commands, "demo", demo, "derivatives checked by finite differences, digits trained with and without penalty"
    )
    parser.add_argument("--batch", type=positive, default=256, help="samples for the derivatives (default 256)")
    parser.add_argument("--epochs", type=positive, default=40, help="of both trainings (default 40)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and direction (default 0)")


PENALTY = 0.01  # μ of the training with penalty
TOLERANCE = 1e-6  # of the finite differences below: their own error is about 1e-8


def demo(options: argparse.Namespace) -> int:
    """Check the derivatives, then train with and without the penalty."""
    if not show_derivatives(options):
        return FAILED
    print()
    compare_trainings(options)
    return OK


def show_derivatives(options: argparse.Namespace) -> bool:
    """Loss, ∇f, Hv and vᵀ∇Hv of a small convolutional network in float64, beside central differences."""
    x, y, source = digits(options.batch)
    net = rop.Sequential(
        rop.Conv2d(1, 8, 3, padding=1),
        rop.SiLU(),
        rop.AvgPool2d(2),
        rop.Conv2d(8, 16, 3, padding=1),
        rop.SiLU(),
        rop.AvgPool2d(2),
        rop.Flatten(),
        rop.Linear(64, 10),
    )
    w = net.init(seed=options.seed, dtype=np.float64)
    v = np.random.default_rng(options.seed).standard_normal(w.size)
    v /= np.linalg.norm(v)
    f = rop.Objective(net, rop.CrossEntropy(), x, y, dtype=np.float64)
    jet, point = f.jet(w, v), f.at(w)
    directions = itertools.cycle((v, np.roll(v, 1)))  # so that no call is answered from the cache of the last one

    h = 1e-4
    ahead, behind = f.jet(w + h * v, v), f.jet(w - h * v, v)
    # name, result, the part to compare, central difference of the order below, a call to time, what it computes
    rows = (
        ("∇f", jet.grad, jet.grad @ v, ahead.loss - behind.loss, lambda: f.at(w), "loss and ∇f at a new w"),
        (
            "H v",
            jet.hvp,
            jet.hvp,
            ahead.grad - behind.grad,
            lambda: point.hvp(next(directions)),
            "one Hessian-vector product at the same w",
        ),
        (
            "vᵀ∇H v",
            jet.r2,
            jet.r2,
            ahead.hvp - behind.hvp,
            lambda: f.jet(w, next(directions)),
            "loss, ∇f, H v and vᵀ∇H v at a new w",
        ),
    )
    print(f"{source}: {len(x)} images of 8×8; a convolutional network with {w.size} parameters, float64")
    print(f"loss {jet.loss:.6f}\n")
    print(f"{'':10}{'norm':>12}{'error':>12}{'time':>12}")
    errors = []
    for name, result, exact, difference, call, note in rows:
        norm = float(np.linalg.norm(result))
        errors.append(float(np.linalg.norm(difference / (2 * h) - exact)) / norm)
        print(f"{name:10}{norm:12.6f}{errors[-1]:12.1e}{1e3 * best_time(call):9.2f} ms   {note}")
    passed = max(errors) <= TOLERANCE
    print(f"\nerror: relative to the norm, against central differences with step {h:g}; {TOLERANCE:g} is allowed")
    print("all three agree" if passed else "NOT all of them agree")
    return passed


def compare_trainings(options: argparse.Namespace) -> None:
    """The same net trained on digits without and with the penalty."""
    from rop.experiments.runs import Run, new_config

    print(f"digits, {options.epochs} epochs: min f(w) + μ·ρ(w), ρ the spectral radius of the Hessian of the loss f")
    print(f"{'':12}{'test accuracy':>16}{'test loss':>12}{'ρ (all data)':>16}{'H·v products':>16}{'time':>10}")
    for mu in (0.0, PENALTY):
        run = Run(new_config("digits", mu=mu, epochs=options.epochs, seed=options.seed, setting="plain"), None)
        found = run.results(run.train())
        print(
            f"{'μ = ' + format(mu, 'g'):12}{100 * found['test_accuracy']:14.2f} %{found['test_loss']:12.4f}"
            f"{found['rho']:16.3f}{found['hvps']:16,}{found['seconds']:8.1f} s"
        )


def digits(count: int) -> tuple[np.ndarray, np.ndarray, str]:
    """scikit-learn's handwritten digits if it is installed, else blurred random images."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        rng = np.random.default_rng(0)
        y = rng.integers(10, size=count)
        shapes = rng.standard_normal((10, 1, 8, 8))
        return shapes[y] + 0.5 * rng.standard_normal((count, 1, 8, 8)), y, "made-up digits (no scikit-learn here)"
    data = load_digits()
    x = (data.images[:count, None] / 8.0 - 1.0).astype(np.float64)
    return x, data.target[:count], "scikit-learn's digits"


def best_time(call: Callable[[], object], budget: float = 0.2) -> float:
    """Seconds of the fastest call within the budget."""
    best, until = float("inf"), time.perf_counter() + budget
    while time.perf_counter() < until:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best
