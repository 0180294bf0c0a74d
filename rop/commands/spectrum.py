"""`rop spectrum`: eigenvalues and density of the Hessian of a trained net on its whole training set."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

import rop
from rop.commands.common import FAILED, OK, Commands, add_command, note_missing, positive
from rop.commands.runs import EXAMPLES, add_common, finish


def add(commands: Commands) -> None:
    """The parser of `rop spectrum`."""
    parser = add_command(commands, "spectrum", run, "eigenvalues and density of the Hessian", EXAMPLES)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--k", type=positive, default=5, metavar="N", help="eigenvalues at each end (default 5)")
    parser.add_argument("--probes", type=positive, default=4, metavar="N", help="of the density (default 4)")
    parser.add_argument("--steps", type=positive, default=40, metavar="N", help="Lanczos steps of each (default 40)")
    add_common(parser, profile=False)


def run(options: argparse.Namespace) -> int:
    """Show both ends of the spectrum and draw its density."""
    from rop.experiments.runs import Run, pyplot

    trained = Run.open(options.run)
    w, state = trained.weights()
    trained.data(options.data)
    point = trained.full_objective(w, state).at(w)
    k = min(options.k, max(1, trained.net.size // 2))
    ends = {which: rop.eigen.lanczos(point, k=k, which=which, tol=1e-2, maxiter=300) for which in ("LA", "SA")}
    density = rop.eigen.density(point, probes=options.probes, steps=min(options.steps, trained.net.size))
    results = {
        "largest": ends["LA"].values.tolist(),
        "smallest": ends["SA"].values.tolist(),
        "rho": float(max(abs(ends["LA"].value), abs(ends["SA"].value))),
        "converged": bool(ends["LA"].converged and ends["SA"].converged),
        "loss": point.loss,
        "gradient_norm": float(np.linalg.norm(point.grad)),
    }
    if not (options.quiet and options.json):
        for name in ("largest", "smallest"):
            print(f"{name:10}" + "  ".join(f"{value:.4g}" for value in results[name]))
        print(f"{'ρ':10}{results['rho']:.4g}")
    path = options.run / "spectrum.png"
    plt = pyplot()
    if plt is None:
        note_missing("spectrum.png", "matplotlib", "train")
    else:
        _plot_density(plt, density, path, trained.title())
        if not options.quiet:
            print(f"density written to {path}")
    if not results["converged"]:
        print("rop spectrum: not all eigenvalues have converged", file=sys.stderr)
    finish(results, options)
    return OK if results["converged"] else FAILED


def _plot_density(plt: ModuleType, density: rop.eigen.Density, path: Path, title: str) -> None:
    from rop.training.checkpoint import write_atomically

    figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axis.semilogy(density.grid, np.maximum(density.density, 1e-6))
    axis.set(xlabel="eigenvalue", ylabel="density", title=f"Hessian of {title}", ylim=(1e-5, None))
    axis.grid(alpha=0.3)
    write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=120))
    plt.close(figure)
