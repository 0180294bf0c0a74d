"""`python -m tests.appendix`: the numbers of docs/derivations.md.

How far every equation of appendix A is from autograd, as printed and corrected, and what the algorithms come to.
"""

from __future__ import annotations

from collections.abc import Iterator

from numpy.linalg import norm

from tests.appendix import algorithms as a
from tests.appendix.comparison import CORRECTED, PRINTED, Comparison
from tests.appendix.test_algorithms import (
    CLOSE,
    DEFINITE,
    IDENTITY,
    NEGATIVE,
    POSITIVE,
    RATES,
    angle,
    dominant,
    measured_rates,
    residual,
    start,
)
from tests.appendix.test_convergence import Counterexample
from tests.appendix.test_equations import PLAIN, USUAL

Rows = Iterator[tuple[str, str, str]]  # what is measured, as printed, in truth


def cell(comparison: Comparison, name: str, layer: int) -> str:
    """The relative error of a printed equation as text."""
    try:
        error = comparison.error(name, layer)
    except ValueError:
        return "undefined"
    return "shape" if error == float("inf") else f"{error:.1e}"


def show_equations() -> None:
    nets = {"plain": PLAIN, "usual": USUAL}
    print("Relative errors of the printed equations beside autograd, float64, in a hidden layer and in the last one.")
    print("plain: net 4-4-4-4, no bias, separable loss. usual: 5-4-6-3, bias inside σ, softmax with cross-entropy.")
    print("undefined: indices or shapes do not match. shape: the result has the wrong one.\n")
    heads = [f"{net} {place}" for net in nets for place in ("hidden", "last")]
    print(f"{'':17}" + "".join(f"{head:>14}" for head in [*heads, "corrected"]))
    for number, name in enumerate(PRINTED, start=1):
        printed = [cell(net, name, layer) for net in nets.values() for layer in (1, 2)]
        right = max(USUAL.error(name, layer, corrected=True) for layer in (1, 2))
        last = f"{right:.1e}" if name in CORRECTED else "as printed"
        print(f"({number})".ljust(6) + f"{name:11}" + "".join(f"{text:>14}" for text in [*printed, last]))


def iterations(found: a.Found) -> str:
    return str(found.iterations) if found.finished else f"none in {found.iterations}"


def algorithm_1_rows() -> Rows:
    for epsilon in (1e-3, 1e-5, 1e-7):
        both = a.algorithm_1(POSITIVE, start(), epsilon), a.algorithm_1_corrected(POSITIVE, start(), epsilon)
        yield f"Algorithm 1, λ from −1 to 2, ε = {epsilon:.0e}: iterations", iterations(both[0]), iterations(both[1])
        first, second = (f"{residual(POSITIVE, found.v):.1e}" for found in both)
        yield "    and the residual it leaves", first, second
    both = a.algorithm_1(NEGATIVE, start(), 1e-3), a.algorithm_1_corrected(NEGATIVE, start(), 1e-3)
    yield "Algorithm 1, λ from −2 to 1, ε = 1e-03: iterations", iterations(both[0]), iterations(both[1])
    of_value, of_vector = measured_rates(RATES)
    printed = a.power_iteration_rate(2, 1.2)
    yield "what an iteration leaves of λ's error, λ₁ = 2, λ₂ = 1.2", f"{printed:.3f}", f"{of_value:.3f}"
    yield "    and of v's", "", f"{of_vector:.3f}"


def algorithm_2_rows() -> Rows:
    ritz = a.algorithm_2_corrected(POSITIVE, IDENTITY, start(), 1e-8)
    for size in (0.2, 0.4, 0.6, 0.8):
        found = a.algorithm_2(POSITIVE, IDENTITY, lambda j, size=size: size, start(), 1e-8, 2_000)  # type: ignore[misc]
        yield f"Algorithm 2, λ from −1 to 2, step {size}: iterations", iterations(found), iterations(ritz)
    both = (
        a.algorithm_2(NEGATIVE, IDENTITY, lambda j: 0.6, start(), 1e-8),
        a.algorithm_2_corrected(NEGATIVE, IDENTITY, start(), 1e-8),
    )
    yield "Algorithm 2, λ from −2 to 1, step 0.6: ρ", f"{both[0].rho:.3f}", f"{both[1].rho:.3f}"
    Ts = a.preconditioner(DEFINITE), a.preconditioner_corrected(DEFINITE, 2.02), IDENTITY
    inverse, shifted, none = (iterations(a.algorithm_2_corrected(DEFINITE, T, start(), 1e-8)) for T in Ts)
    yield "LOBPCG, κ = 200, T = H⁻¹ | (θI − H)⁻¹: iterations", inverse, shifted
    yield "    without T", "", none


def convergence_rows() -> Rows:
    wrong_by = angle(a.algorithm_1(CLOSE, start(), 1e-6).v, dominant(CLOSE)[1])
    yield "Lemma 4.1, gap 0.01, ε = 1e-06: error of v", f"{a.eigenvector_bound(1e-6):.0e}", f"{wrong_by:.3f}"
    problem = Counterexample()
    w = problem.run(steps=20_000, seed=2)
    yield "Theorem 4.1, counterexample, 20000 steps: ‖∇g‖", "0", f"{norm(problem.gradient_of_g(w)):.2f}"
    yield "    at s", f"{problem.centre:.3f}", f"{w[0]:.2f}"


def show_algorithms() -> None:
    print("Algorithms and claims; matrices are 20 × 20, solved to a residual of 1e-8 where nothing else is said.\n")
    print(f"{'':58}{'as printed':>14}{'in truth':>14}")
    for label, printed, right in (*algorithm_1_rows(), *algorithm_2_rows(), *convergence_rows()):
        print(f"{label:58}{printed:>14}{right:>14}")


def main() -> None:
    show_equations()
    print()
    show_algorithms()


if __name__ == "__main__":
    main()
