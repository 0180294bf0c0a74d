"""Which eigen-solver, and which preconditioner, finds the spectral radius of a Hessian with the fewest products.

    python examples/preconditioners.py                       # random data
    ROP_DATA=folder python examples/preconditioners.py       # covtype.data.gz, zip.train.gz in that folder

Two of the paper's networks are trained by plain gradient descent; then, on a few batches, the largest |λ| is sought by
power iteration, by Lanczos, by LOBPCG without a preconditioner, with the paper's (K + λI)⁻¹ and with (θI − K)⁻¹, and by
the paper's Algorithm 2. K is K-FAC's approximation of the Hessian.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import rop
from rop import eigen

Data = tuple[np.ndarray, np.ndarray]
Solver = Callable[[rop.Point, int], eigen.Eigen]


def forest_network() -> rop.Graph:
    """54-20-20-20-7."""
    layers: list[rop.Layer] = []
    for before in (54, 20, 20):
        layers += [rop.Linear(before, 20), rop.ReLU()]
    return rop.Sequential(*layers, rop.Linear(20, 7))


def usps_network() -> rop.Graph:
    """Three convolutions with pooling, two linear layers."""
    layers: list[rop.Layer] = []
    for before, after in ((1, 8), (8, 16), (16, 32)):
        layers += [rop.Conv2d(before, after, 3, padding=1), rop.ReLU(), rop.MaxPool2d(2)]
    return rop.Sequential(*layers, rop.Flatten(), rop.Linear(128, 64), rop.ReLU(), rop.Linear(64, 10))


NETWORKS: dict[str, tuple[Callable[[], rop.Graph], tuple[int, ...], int, float, Callable[[int], float]]] = {
    "forest": (forest_network, (54,), 7, 0.5, eigen.forest_step),
    "usps": (usps_network, (1, 16, 16), 10, 0.1, eigen.usps_step),
}


def read(name: str, shape: tuple[int, ...], classes: int) -> tuple[Data, str]:
    """The training part of the data set if there is a folder with it, else random numbers."""
    if os.environ.get("ROP_DATA"):
        from rop import datasets

        return datasets.load(name).train, "real data"
    rng = np.random.default_rng(0)
    y = rng.integers(classes, size=4096)
    centres = rng.standard_normal((classes, *shape))
    return (centres[y] + rng.standard_normal((y.size, *shape)), y), "random data"


def batches(data: Data, size: int, number: int, seed: int) -> list[Data]:
    rng = np.random.default_rng(seed)
    rows = [rng.choice(len(data[1]), size, replace=False) for _ in range(number)]
    return [(data[0][one], data[1][one]) for one in rows]


def train(f: rop.Objective, w: np.ndarray, data: list[Data], rate: float) -> np.ndarray:
    """Plain gradient descent."""
    for x, y in data:
        w = w - np.float32(rate) * f.with_data(x, y).at(w).grad
    return w


def solvers(tol: float, step: Callable[[int], float], known: float) -> dict[str, Solver]:
    """Every way to find ρ, as a function of a point and a seed; ``known`` is ρ on another batch."""

    def method(name: str, **options: Any) -> Solver:
        return lambda p, seed: rop.spectral_radius(p, name, tol=tol, seed=seed, **options)

    def lobpcg(make: Callable[[rop.Point], rop.kfac.Kfac | rop.kfac.Shifted]) -> Solver:
        return lambda p, seed: eigen.lobpcg(p, tol=tol, seed=seed, preconditioner=make(p))

    return {
        "power": method("power"),
        "lanczos": method("lanczos"),
        "lobpcg": method("lobpcg"),
        "lobpcg, (K + 0.001 I)⁻¹": lobpcg(lambda p: rop.kfac.kfac(p)),
        "lobpcg, (K + 0.1 I)⁻¹": lobpcg(lambda p: rop.kfac.kfac(p, damping=0.1)),
        "lobpcg, (θI − K)⁻¹": lobpcg(lambda p: rop.kfac.kfac(p).shifted()),
        "lobpcg, the same, θ from ρ": lobpcg(lambda p: rop.kfac.kfac(p).shifted(ritz=known)),
        "algorithm 2": method("paper_lobpcg", alpha=step),
        "algorithm 2, its own stop": method("paper_lobpcg", alpha=step, stop="paper"),
    }


def compare(name: str, arguments: argparse.Namespace) -> None:
    build, shape, classes, rate, step = NETWORKS[name]
    data, kind = read(name, shape, classes)
    net = build()
    descent = batches(data, arguments.batch, arguments.steps, seed=1)
    f = rop.Objective(net, rop.CrossEntropy(), *descent[0])
    w = train(f, net.init(seed=0), descent, rate)
    points = [f.with_data(*one).at(w) for one in batches(data, arguments.batch, arguments.points, seed=2)]
    exact = [eigen.lanczos(p, tol=1e-4).rho for p in points]
    print(
        f"\n{name} ({kind}): {net.size} parameters, {arguments.steps} steps, batch {arguments.batch}, loss "
        f"{np.mean([p.loss for p in points]):.3f}, ρ from {min(exact):.3g} to {max(exact):.3g}; means over "
        f"{len(points)} batches"
    )
    print(f"{'solver':28}{'iterations':>11}{'products':>10}{'converged':>11}{'‖Hv−λv‖/|λ|':>13}{'ρ is off by':>13}")
    for title, solve in solvers(arguments.tol, step, known=exact[-1]).items():
        found = [solve(p, seed) for seed, p in enumerate(points)]
        columns = {
            "iterations": np.mean([one.iterations for one in found]),
            "products": np.mean([one.hvps for one in found]),
            "residual": np.mean([one.residuals[0] / one.rho for one in found]),
            "error": np.mean([abs(one.rho / rho - 1) for one, rho in zip(found, exact, strict=True)]),
            "converged": f"{sum(one.converged for one in found)} / {len(found)}",
        }
        print(
            "{title:28}{iterations:11.1f}{products:10.1f}{converged:>11}{residual:13.1e}{error:13.1e}".format(
                title=title, **columns
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--steps", type=int, default=200, help="of gradient descent before the search")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--points", type=int, default=3, help="batches on which the solvers are compared")
    parser.add_argument("--tol", type=float, default=1e-3, help="relative residual")
    arguments = parser.parse_args()
    for name in arguments.networks:
        compare(name, arguments)


if __name__ == "__main__":
    main()
