"""``python -m tests.helpers.cuda_table docs/cuda-kernels.md`` writes the page on the resources of the CUDA kernels."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.helpers.cuda_build import CAPABILITIES, PRECISIONS, Examined, Resources, Spec, examined, ptxas, specs, start
from tests.helpers.cuda_requests import is_listed, specialisations

TILED = ("bilinear.products", "bilinear.weight_gradient")


@dataclass(frozen=True)
class Device:
    """What a multiprocessor of a generation holds (CUDA C++ Programming Guide, technical specifications)."""

    warps: int
    blocks: int
    shared: int  # bytes
    reserved: int  # bytes of it that each block costs besides its own
    registers: int = 65536


DEVICES = {
    (7, 5): Device(32, 16, 64 * 1024, 0),
    (8, 0): Device(64, 32, 164 * 1024, 1024),
    (9, 0): Device(64, 32, 228 * 1024, 1024),
    (12, 0): Device(48, 24, 100 * 1024, 1024),
}


def occupancy(needs: Resources, threads: int, device: Device) -> float:
    """Which part of the warps that a multiprocessor can hold are there: registers come in lots of 256 per warp."""
    warps = -(-threads // 32)
    per_warp = -(-needs.registers * 32 // 256) * 256
    by_registers = device.registers // per_warp // warps
    by_shared = device.shared // (needs.shared + device.reserved) if needs.shared else device.blocks
    return min(device.blocks, device.warps // warps, by_registers, by_shared) * warps / device.warps


def rows() -> list[Spec]:
    """The specialisations that the page lists."""
    chosen = []
    for kernel, options in specialisations().items():
        whole = [one for one in options if is_listed(one)]
        chosen += [Spec(kernel, precision, tuple(one.items())) for one in whole for precision in PRECISIONS]
    return chosen


def tools() -> str:
    told = subprocess.run([str(ptxas()), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V([\d.]+)", told)
    return f"numba-cuda {version('numba-cuda')}, ptxas {found[1] if found else told}"


def _line(spec: Spec, found: Examined) -> str:
    options = [
        f"{name} {getattr(value, '__name__', value)}"
        for name, value in spec.options
        if name not in ("orders", "levels", "others", "count") and value is not False
    ]
    needs = [found.resources[capability] for capability in CAPABILITIES]
    registers = " / ".join(str(each.registers) for each in needs)
    shared = "/".join(str(size) for size in dict.fromkeys(each.shared for each in needs))
    parts = [round(100 * occupancy(found.resources[c], found.threads, DEVICES[c])) for c in CAPABILITIES]
    ratio = f"{found.multiplications_per_load:.1f}" if spec.kernel in TILED else ""
    name = f"`{spec.kernel}`" + (f" ({', '.join(options)})" if options else "")
    filled = " / ".join(map(str, parts))
    return f"| {name} | {spec.precision} | {found.threads} | {registers} | {shared} | {filled} | {ratio} |"


def document() -> str:
    """The whole page."""
    chosen = rows()
    start(chosen)
    table = "\n".join(_line(spec, examined(spec)) for spec in chosen)
    return f"""# Resources of the CUDA kernels

**None of these kernels has ever run on a GPU.** They are compiled, assembled and interpreted, as described below; how
fast they are is not known.

This page is written by `python -m tests.helpers.cuda_table docs/cuda-kernels.md` and compared with what the compilers
say by `tests/kernels/cuda/test_cuda_compile.py` ({tools()}). It lists each kernel in the form that computes orders 0,
1 and 2 in one launch. Numbers with slashes are for compute capability 7.5 / 8.0 / 9.0 / 12.0. No kernel uses local
memory or spills a register, none has an atomic update, and no float32 kernel a float64 instruction: this is tested for
all {len(specs())}
forms that are examined (`tests/helpers/cuda_requests.py`), and so is what they compute: every specialisation that the
engine can ask for, but of activations and of separable losses one each stands for all where a pass computes part of
the orders. Forms that are not listed here are compiled for the oldest and the newest generation only.

- *Registers* per thread, *shared* memory per block in bytes: as `ptxas -v` reports them.
- *Occupancy*: warps that a multiprocessor holds at a time, in percent of those it could hold, from registers, shared
  memory and block size. Products keep 48 sums per thread in registers and are meant to run at low occupancy.
- *FMA per load*: multiply-adds per load instruction from shared memory, counted while the PTX was executed.

| kernel | precision | threads | registers | shared | occupancy % | FMA per load |
|---|---|---|---|---|---|---|
{table}

## What is known without a GPU

1. The simulator of Numba runs the Python source of the kernels
   (`tests/devices/cuda/test_cuda_simulator.py`): whole networks against the CPU engine.
2. The compilers accept every kernel, with the resources above (`tests/kernels/cuda/test_cuda_compile.py`).
3. The PTX that the compiler makes is executed instruction by instruction on small ragged shapes by the machine in
   `tests/helpers/ptx` (`tests/kernels/cuda/test_cuda_ptx.py`): results are those of NumPy, there are no races, no
   accesses out of bounds, no reads of shared memory that nobody wrote, no barriers that some threads miss. Mistakes
   planted in the kernels are found.

Not known: anything about time, and whatever a real device does differently from its documentation.
"""


if __name__ == "__main__":
    if len(sys.argv) == 2:
        Path(sys.argv[1]).write_text(document(), "utf-8")
    else:
        print(document(), end="")
