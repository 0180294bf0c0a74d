"""Random numbers that are functions of a key and a place.

A step of training makes the same ones wherever it runs, compiled or in Python, and when a run goes on after it was
killed. The key is made of the run's seed, the number of the step and what the numbers are for. As in rules.py, the
functions at the top take numbers or NumPy arrays, and are compiled for the CPU.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

UNIFORM_BITS = 24  # of a uniform number: whole numbers below 2²⁴ are exact in float32
FIRST = 1 / (1 << UNIFORM_BITS)
# The Taylor coefficients of sin 2πr, (2π)^k / k! with alternating signs for k = 1, 3, …, 11
SINE = tuple((-1) ** (k // 2) * (2 * math.pi) ** k / math.factorial(k) for k in range(1, 13, 2))


def mixed(key):
    """64 well-mixed bits of a key (splitmix64's finaliser)."""
    z = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def joined(key, part):
    """The key of a place inside the place that another key stands for."""
    return mixed(key + np.uint64(part) + np.uint64(1))  # 1: the bits of 0 mix to 0


def scrambled(word):
    """32 well-mixed bits of 32 others (the integer hash triple32): vectors of CPUs without AVX-512 multiply no more."""
    x = np.uint32(word ^ (word >> np.uint32(17)))
    x = np.uint32(x * np.uint32(0xED5AD4BB))
    x = np.uint32(x ^ (x >> np.uint32(11)))
    x = np.uint32(x * np.uint32(0xAC4C1B51))
    x = np.uint32(x ^ (x >> np.uint32(15)))
    x = np.uint32(x * np.uint32(0x31848BAB))
    return np.uint32(x ^ (x >> np.uint32(14)))


def normal(first, second):
    """√(−2 log u) cos 2πt, standard normal, from uniform u = (first + 1) / 2²⁴ and t = second / 2²⁴ (Box and Muller);
    it is at most 5.8. The cosine is sin 2πr with r = |t − ½| − ¼, by its series.

    >>> round(float(normal(0.0, 0.0)), 2), abs(float(normal(2.0**23, 2.0**22))) < 1e-6
    (5.77, True)
    """
    radius = math.sqrt(-2 * math.log((first + 1) * FIRST))
    r = abs(second * FIRST - 0.5) - 0.25
    z = r * r
    a, b, c, d, e, f = SINE
    return radius * r * (a + z * (b + z * (c + z * (d + z * (e + z * f)))))


def place_of(uniform, count):
    """A whole number below ``count`` from 64 random bits.

    >>> int(place_of(np.uint64(1 << 63), 10))
    5
    """
    return int(float(uniform >> np.uint64(11)) * 2.0**-53 * count)


# ----------------------------------------------------------------------------------------------------------- in Python
@np.errstate(over="ignore")  # whole numbers go round
def key_of(*parts: int) -> np.uint64:
    """The key of a place that several numbers name.

    >>> len({int(key) for key in (key_of(0, 1), key_of(1, 0), key_of(1), key_of(0, 1, 0), key_of(0, 1))})
    4
    """
    key = np.uint64(0)
    for part in parts:
        key = joined(key, part)
    return key


def normals(size: int, key: np.uint64, dtype: Any = np.float64) -> np.ndarray:
    """Standard normal numbers, (size,); their resolution is that of float32.

    >>> z = normals(100_000, key_of(1))
    >>> round(float(z.mean()), 1) + 0.0, round(float(z.std()), 2)
    (0.0, 1.0)
    """
    from rop.kernels.rules import in_python

    low, high = (np.array(int(key) >> shift & 0xFFFFFFFF, np.uint32) for shift in (0, 32))
    first = scrambled(np.arange(size, dtype=np.uint32) + low)
    second = scrambled(first ^ high)
    uniform = [(word >> np.uint32(32 - UNIFORM_BITS)).astype(np.float64) for word in (first, second)]
    return np.asarray(in_python(normal, np.float64)(*uniform), dtype)


@np.errstate(over="ignore")
def distinct(count: int, below: int, key: np.uint64) -> list[int]:
    """Different whole numbers below ``below``, every set of them equally likely (Floyd's algorithm).

    >>> sorted(distinct(5, 5, key_of(2)))
    [0, 1, 2, 3, 4]
    """
    chosen: list[int] = []
    for last in range(below - count, below):
        one = place_of(mixed(key + np.uint64(last)), last + 1)
        chosen.append(last if one in chosen else one)
    return chosen
