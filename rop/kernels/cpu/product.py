"""Products of two values: one kernel for all orders, for the product and for the gradients of its factors.

Each is a sum over orders, Σ_j left_j · right_{k−j}, number by number. How the three values lie is said by three nested
*axes*, from the outside to the inside: an axis has a length and, for each value, the bytes from one number to the next,
which are 0 where the value has one number for the whole axis. A result that has one is a sum over the axis.
"""

from __future__ import annotations

from rop.kernels.compile import Axis, Slice, Terms, helper, kernel, loop, real
from rop.kernels.cpu.memory import bounds_of, reals

PIECE = 1024  # numbers whose terms are added up one after the other, while they are in the cache


@loop
def _multiply(y, a, b):
    for t in range(y.size):
        y[t] = a[t] * b[t]


@loop
def _add_product(y, a, b):
    for t in range(y.size):
        y[t] += a[t] * b[t]


@loop
def _scale(y, a, factor):
    for t in range(y.size):
        y[t] = a[t] * factor


@loop
def _add_scaled(y, a, factor):
    for t in range(y.size):
        y[t] += a[t] * factor


@loop
def _inner(a, b):
    """Σ a b."""
    total = real(0)
    for t in range(a.size):
        total += a[t] * b[t]
    return total


@helper
def one_term(y, left, right, count, lanes, add):
    """y (+)= left · right along the innermost axis, for all of which y or the right factor may have one number."""
    _, y_step, _, right_step = lanes
    a = reals(left, count)
    if y_step == 0:
        reals(y, 1)[0] += _inner(a, reals(right, count))
    elif right_step == 0 and add:
        _add_scaled(reals(y, count), a, reals(right, 1)[0])
    elif right_step == 0:
        _scale(reals(y, count), a, reals(right, 1)[0])
    elif add:
        _add_product(reals(y, count), a, reals(right, count))
    else:
        _multiply(reals(y, count), a, reals(right, count))


@helper
def place(outer, i, middle, j, inner, t, which):
    """Bytes to number (i, j, t) of a value: 1 is the result, 2 the left and 3 the right factor."""
    return i * outer[which] + j * middle[which] + t * inner[which]


@kernel
def products(y, terms: Terms, outer: Axis, middle: Axis, inner: Axis, add, part: Slice):
    """y = Σ_terms left · right, or y += with ``add``, which a result that is a sum over an axis must have. Slices
    divide the outer axis, along which y must then have numbers of its own."""
    low, high = bounds_of(outer[0], part)
    for i in range(low, high):
        for j in range(middle[0]):
            for t in range(0, inner[0], PIECE):
                count = min(PIECE, inner[0] - t)
                for term in range(terms[0]):
                    one_term(
                        y + place(outer, i, middle, j, inner, t, 1),
                        terms[1 + 2 * term] + place(outer, i, middle, j, inner, t, 2),
                        terms[2 + 2 * term] + place(outer, i, middle, j, inner, t, 3),
                        count,
                        inner,
                        add != 0 or term > 0,
                    )
