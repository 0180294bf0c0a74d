"""The paper's appendix to the letter: every equation a function, tested against autograd. See docs/derivations.md.

    equations.py    appendix A, forward, backward, R and R² of a fully connected net, for one sample
    algorithms.py   Algorithms 1 and 2, ∇ρ, and what is claimed of their convergence
    autograd.py     the second opinion, from torch

Where the printed form is wrong, the right one stands beside it under the same name with `_corrected` behind it. Those
two files use nothing but NumPy, and nothing of rop. `python -m tests.appendix` prints the errors of both forms.
"""
