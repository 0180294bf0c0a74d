"""`python -m tests.appendix`: how far every equation of appendix A is from autograd, as printed and corrected."""

from __future__ import annotations

from tests.appendix.comparison import CORRECTED, PRINTED, Comparison
from tests.appendix.test_equations import PLAIN, USUAL


def cell(comparison: Comparison, name: str, layer: int, corrected: bool) -> str:
    """A relative error as text."""
    try:
        error = comparison.error(name, layer, corrected=corrected)
    except ValueError:
        return "undefined"
    return "shape" if error == float("inf") else f"{error:.1e}"


def main() -> None:
    nets = {"plain": PLAIN, "usual": USUAL}
    print("Relative errors of the printed equations beside autograd, float64, in a hidden layer and in the last one.")
    print("plain: net 4-4-4-4, no bias, separable loss. usual: 5-4-6-3, bias inside σ, softmax with cross-entropy.")
    print("undefined: indices or shapes do not match. shape: the result has the wrong one.\n")
    heads = [f"{net} {place}" for net in nets for place in ("hidden", "last")]
    print(f"{'':6}{'':11}" + "".join(f"{head:>14}" for head in heads) + f"{'corrected':>14}")
    for number, name in enumerate(PRINTED, start=1):
        printed = [cell(net, name, layer, False) for net in nets.values() for layer in (1, 2)]
        right = max(USUAL.error(name, layer, corrected=True) for layer in (1, 2))
        last = f"{right:.1e}" if name in CORRECTED else "as printed"
        print(f"({number})".ljust(6) + f"{name:11}" + "".join(f"{text:>14}" for text in printed) + f"{last:>14}")


if __name__ == "__main__":
    main()
