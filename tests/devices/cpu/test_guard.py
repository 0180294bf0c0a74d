"""The guard mode catches kernels that write outside their own memory, and names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba.core.caching import NullCache

import rop
from rop.devices.cpu import guard
from rop.devices.cpu.code import Code, Ref
from rop.devices.cpu.emit.bilinear import WIDE
from rop.devices.cpu.guard import GuardError
from rop.devices.cpu.memory import Layout
from rop.kernels.compile import Kernel, itemsize, loop
from rop.kernels.cpu import bilinear
from rop.kernels.cpu.gemm import PANEL, share
from rop.kernels.cpu.memory import reals
from rop.kernels.cpu.transfer import LONG
from tests.helpers.processes import run_python
from tests.helpers.zoo import labels, normal, residual

ROWS_AT_ONCE, COLUMNS_AT_ONCE = 8, 16


@loop
def _copy_sixteen(y, x):
    for i in range(COLUMNS_AT_ONCE):
        y[i] = x[i]


def spilling_pack(y, w, rows, columns, part, parts):
    """The packing of wide layers as it was: it writes 16 numbers a row and counts on the next row to be written later,
    which is right for panels of eight columns and more only."""
    panels = (columns + PANEL - 1) // PANEL
    source = reals(w, rows * columns)
    target = reals(y, rows * columns)
    blocks = (rows + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE
    for block in range(blocks * part // parts, blocks * (part + 1) // parts):
        column = 0
        for panel in range(panels):
            m = share(panels, panel, columns)
            last = min(rows, ROWS_AT_ONCE * (block + 1)) - 1
            for row in range(ROWS_AT_ONCE * block, last):
                _copy_sixteen(
                    reals(y + (column * rows + row * m) * itemsize, COLUMNS_AT_ONCE),
                    reals(w + (row * columns + column) * itemsize, COLUMNS_AT_ONCE),
                )
            for i in range(m):
                target[column * rows + last * m + i] = source[last * columns + column + i]
            column += m


def wide_behind(inputs: int) -> Any:
    """A net with a wide layer of so many inputs behind another layer."""
    return rop.Sequential(rop.Linear(3, inputs), rop.Tanh(), rop.Linear(inputs, -(-WIDE // inputs)))


def jet(net: Any, shape: tuple[int, ...] = (3,), batch: int = 20, dtype: Any = np.float64) -> Any:
    x, y = normal(0, (batch, *shape)), labels(0, (batch,), 2)
    f = rop.Objective(net, rop.CrossEntropy(), x, y, dtype=dtype)
    w = net.init(0, dtype)
    return f.jet(w, w[::-1].copy())


def test_the_guard_mode_is_on_in_the_tests() -> None:
    assert guard.ACTIVE


@pytest.mark.parametrize("inputs", [PANEL + 1, PANEL + 2, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_spilling_pack_is_caught(inputs: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Kernel(spilling_pack, "bilinear.pack_transposed")
    planted.cache = lambda name: NullCache()
    monkeypatch.setattr(bilinear, "pack_transposed", planted)
    with pytest.raises(GuardError, match=r"kernel bilinear\.pack_transposed.*panels"):
        jet(wide_behind(inputs), dtype=dtype)


@pytest.mark.parametrize("inputs", [1, 2, 5, 7, PANEL - 1, PANEL, PANEL + 1, PANEL + 2, 2 * PANEL + 1, 131])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_packing_stays_inside_for_panels_of_every_size(inputs: int, dtype: Any) -> None:
    jet(wide_behind(inputs), dtype=dtype)


def off_by_one(kernel: str, operand: str) -> Callable[..., None]:
    """Code._add with one operand of one kernel larger by one, or moved by one number if it is an address."""
    add = Code._add

    def planted(self: Code, kind: str, units: int, chosen: Kernel, operands: dict[str, Any], join: bool) -> None:
        if chosen.name.startswith(kernel):
            value = operands[operand]
            operands = {**operands, operand: value.plus(8) if isinstance(value, Ref) else value + 1}
        add(self, kind, units, chosen, operands, join)

    return planted


SMALL = rop.Sequential(rop.Linear(3, 5), rop.Tanh(), rop.Linear(5, 4), rop.LeakyReLU(), rop.Linear(4, 2))


@pytest.mark.parametrize(
    "kernel, operand, net, shape",
    [
        ("elementwise.tanh", "count", SMALL, (3,)),
        ("elementwise.forward", "count", SMALL, (3,)),
        ("elementwise.backward", "count", SMALL, (3,)),
        ("select.rectify", "count", SMALL, (3,)),
        ("bilinear.products", "rows", SMALL, (3,)),
        ("bilinear.bias_gradient", "rows", SMALL, (3,)),
        ("linear_maps.add_rows", "count", residual(batchnorm=False), (1, 4, 4)),
        ("linear_maps.copy_rows", "count", residual(batchnorm=False), (1, 4, 4)),
    ],
)
def test_an_off_by_one_is_caught(
    kernel: str, operand: str, net: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Code, "_add", off_by_one(kernel, operand))
    with pytest.raises(GuardError, match=f"kernel {kernel.split('.')[0]}"):
        jet(net, shape)


@pytest.mark.parametrize("net", [SMALL, rop.Sequential(rop.Linear(3, 8), rop.Linear(8, LONG // 8))])
def test_a_result_that_is_written_too_far_is_caught(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Layout.runs

    def longer(self: Layout, index: np.ndarray) -> np.ndarray:
        found = runs(self, index)
        found[found[:, 1] + found[:, 2] == self.plan.graph.size, 2] += 1
        return found

    monkeypatch.setattr(Layout, "runs", longer)
    with pytest.raises(GuardError, match=r"kernel memory\.collect_runs.*after (out0|a result)"):
        jet(net)


def test_zeros_that_are_written_to_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Layout,
        "rows",
        lambda self, buffer, k, row=0, rows=Layout.rows: (
            Ref("zeros", 0, 0) if buffer.rows == 2 and k == 1 else rows(self, buffer, k, row)
        ),
    )
    with pytest.raises(GuardError, match="zeros"):
        jet(SMALL)


def test_training_steps_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Code, "_add", off_by_one("elementwise.backward", "count"))
    x, y = normal(0, (40, 3)), labels(0, (40,), 2)
    with pytest.raises(GuardError, match=r"kernel elementwise\.backward"):
        rop.train(SMALL, rop.CrossEntropy(), (x, y), epochs=1, batch_size=20)


def test_predictions_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Code, "_add", off_by_one("memory.store", "y"))
    with pytest.raises(GuardError, match=r"kernel memory\.store.*a result"):
        rop.Sequential(rop.Linear(3, 7)).predict(np.zeros(28), normal(0, (16, 3)))


def test_without_the_variable_there_are_no_gaps() -> None:
    run_python(
        """
import numpy as np, rop
from rop.devices.cpu import guard
from rop.devices.cpu.workspace import CpuWorkspace
assert not guard.ACTIVE
net = rop.Sequential(rop.Linear(3, 5), rop.Tanh(), rop.Linear(5, 2))
layout = CpuWorkspace.of(net, (3,), True, rop.CrossEntropy(), np.float32, 20, 1 << 30).layout
assert not layout.gaps and layout.partial_size == 5 * 16 + 5 + 2 * 16 + 2, layout.partial_size
""",
        ROP_GUARD="0",
    )
