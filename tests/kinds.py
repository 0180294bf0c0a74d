"""The kinds of CPU for which the kernels are compiled and tested, on whichever x86 machine this is.

    python -m tests.kinds                     # the numeric tests for every kind but the native one
    python -m tests.kinds avx2 -k Conv2d      # for some kinds, with arguments for pytest

Each kind is a set of environment variables: they say for which CPU Numba compiles and which geometry the kernels have.
"""

from __future__ import annotations

import subprocess
import sys

from llvmlite import binding

from tests.helpers.processes import ROOT, environment

KINDS: dict[str, dict[str, str]] = {
    "native": {},
    "avx2": {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""},
    "no-avx": {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""},
    "avx512-geometry": {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "", "ROP_VECTOR_UNIT": "avx512"},
}
NEEDS = {"avx2": "avx2", "no-avx": "sse4.2", "avx512-geometry": "avx2"}  # the feature without which a kind can't run
OTHERS = tuple(NEEDS)

# What computes numbers on the CPU: every layer and loss, networks, wide layers, long vectors, training, eigenvalues.
NUMERIC = (
    "tests/layers/test_layers.py",
    "tests/layers/test_losses.py",
    "tests/layers/test_elementwise.py",
    "tests/objective/test_networks.py",
    "tests/objective/test_products.py",
    "tests/objective/test_identities.py",
    "tests/devices/cpu/test_thresholds.py",
    "tests/devices/cpu/test_winograd.py",
    "tests/devices/cpu/test_guard.py",
    "tests/devices/cpu/test_layouts.py",
    "tests/training/test_descent.py",
    "tests/curvature/test_eigen.py",
    "tests/kernels/test_mathematics.py",
)
# A part of it that takes seconds and few kernels, those whose loops depend on the geometry.
REPRESENTATIVE = ("tests/devices/cpu/test_thresholds.py::test_layers_whose_loops_depend_on_the_geometry",)


def obstacle(kind: str) -> str | None:
    """What keeps a kind from running on this machine; None if nothing does."""
    feature = NEEDS.get(kind)
    if feature is None or binding.get_host_cpu_features().get(feature, False):
        return None
    return f"the machine's CPU has no {feature}"


def run(kind: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process whose kernels are those of a kind of CPU."""
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(**KINDS[kind], **variables), text=True, check=False)


def main(arguments: list[str]) -> int:
    chosen = [name for name in arguments if name in KINDS]
    rest = [name for name in arguments if name not in KINDS]
    failed = []
    for kind in chosen or OTHERS:
        why = obstacle(kind)
        print(f"--- kernels for {kind}" + (f": not run, {why}" if why else ""), flush=True)
        if why is None and run(kind, *NUMERIC, *rest).returncode != 0:
            failed.append(kind)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
