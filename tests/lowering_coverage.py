"""Which kernels, and which branches of rop/lowering and rop/devices/cpu/emit, the drawn networks never reach.

    python -m tests.lowering_coverage        # prints a JSON object: kernels, lines and branches that are missing

It runs in a process of its own, because the lines of a module run once, when it is imported. Drawing is derandomised:
the same networks every time. Networks are lowered and their passes emitted; nothing is compiled or computed.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import coverage
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

PACKAGE = Path(__file__).resolve().parent.parent / "rop"
EXAMPLES = 600
OF_KFAC = ("factors.", "preconditioner.")  # kernels of passes of their own, which tests/curvature looks at
# What the engine asks for: (order, direction) pairs and the positions whose gradient is wanted.
PASSES: tuple[tuple[tuple[tuple[int, int], ...], tuple[int, ...]], ...] = (
    (((0, 0), (1, 0), (2, 0)), (0, 1, 2)),
    (((0, 0),), (0,)),
    (((1, 0), (1, 1)), (0, 1)),
    (((0, 0), (1, 0), (2, 0)), (2,)),
)


def emitted(net: Any, shape: tuple[int, ...], loss: Any, batch: int, dtype: Any, training: bool) -> set[str]:
    """The kernels of all passes over a network."""
    from rop.devices.cpu.choice import choose_lanes
    from rop.devices.cpu.emit import Lowered
    from rop.lowering import outline

    names: set[str] = set()
    for with_loss, pixel_lanes in itertools.product((loss, None), (False, True)):
        plan = outline(net, shape, training and with_loss is not None, with_loss, dtype, pixel_lanes)
        lowered = Lowered(plan, choose_lanes(plan, batch), min(batch, 9))
        codes = [lowered.emit_outputs()] if with_loss is None else [lowered.emit_pass(*one) for one in PASSES]
        layout = lowered.layout
        tiles = layout.read(np.zeros((1, layout.plane_sizes[0]), dtype), plan.output.buffer)
        assert tiles.shape[:2] == (1, plan.output.rows)
        assert (
            layout.longest_row and layout.zero_bytes and layout.partial_size >= 0 and layout.partial_gaps() is not None
        )
        assert len(lowered.normalisations) == len(plan.normalisations)
        names |= {one.kernel.name for code in codes for stage in code.stages for one in stage.instructions}
    return names


def draw_everything() -> set[str]:
    """Lowers drawn networks of every strategy; returns the kernels that were emitted."""
    import rop
    from tests.helpers.cases import CASES, LOSS_CASES, made
    from tests.helpers.strategies import (
        batch_sizes,
        cnns,
        constant_nets,
        dags,
        flattened_nets,
        large_cnns,
        map_nets,
        mlps,
        rectified_nets,
        wide_map_nets,
        wide_nets,
    )
    from tests.layers.test_layers import PLACES

    names: set[str] = set()
    problems = st.one_of(
        mlps(),
        mlps(batchnorm=True),
        cnns(),
        cnns(batchnorm=True),
        dags(images=False),
        dags(images=True),
        flattened_nets(),
        rectified_nets(),
        constant_nets(),
        wide_nets(),
        large_cnns(),
        map_nets(),
    )
    quietly = settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    dtypes = st.sampled_from([np.float32, np.float64])

    @quietly
    @given(problem=problems, batch=batch_sizes(), dtype=dtypes, training=st.booleans())
    def networks(problem: Any, batch: int, dtype: Any, training: bool) -> None:
        names.update(emitted(problem.net, problem.shape, rop.CrossEntropy(), batch, dtype, training))

    @quietly
    @given(problem=flattened_nets(), batch=batch_sizes(), dtype=dtypes, training=st.booleans())
    def rows_in_another_order(problem: Any, batch: int, dtype: Any, training: bool) -> None:
        names.update(emitted(problem.net, problem.shape, rop.CrossEntropy(), batch, dtype, training))

    @settings(quietly, max_examples=40)
    @given(problem=wide_map_nets(), batch=batch_sizes(), dtype=dtypes, training=st.booleans())
    def wide_convolutions(problem: Any, batch: int, dtype: Any, training: bool) -> None:
        names.update(emitted(problem.net, problem.shape, rop.CrossEntropy(), batch, dtype, training))

    @quietly
    @given(
        data=st.data(),
        case=st.sampled_from(CASES),
        place=st.sampled_from(PLACES),
        batch=batch_sizes(),
        dtype=dtypes,
        training=st.booleans(),
    )
    def layers(data: Any, case: Any, place: Any, batch: int, dtype: Any, training: bool) -> None:
        arguments, shapes = data.draw(case.drawn)
        net, shape = place(made(case, arguments), shapes)
        names.update(emitted(net, shape, rop.CrossEntropy(), batch, dtype, training))

    @quietly
    @given(data=st.data(), case=st.sampled_from(LOSS_CASES), dtype=dtypes)
    def losses(data: Any, case: Any, dtype: Any) -> None:
        arguments, shape, _ = data.draw(case.drawn)
        loss = rop.layers.LOSSES[case.name](**arguments)
        first = rop.Conv2d(2, shape[0], 1) if len(shape) == 3 else rop.Linear(4, shape[0])
        names.update(emitted(rop.Sequential(first), (2, *shape[1:]) if len(shape) == 3 else (4,), loss, 7, dtype, True))

    for run in (networks, rows_in_another_order, wide_convolutions, layers, losses):
        run()
    for net in rare():
        names.update(emitted(net, (4,), rop.CrossEntropy(), 7, np.float32, True))
    return names


def rare() -> list[Any]:
    """What is drawn too seldom: a normalisation of nothing but data, and a vector times a number."""
    import rop

    x = rop.Input()
    product = rop.Mul()(rop.Linear(4, 3)(x), rop.Linear(4, 1)(x))
    return [rop.Sequential(rop.BatchNorm1d(4, affine=False), rop.Linear(4, 2)), rop.Graph(x, product)]


def missing() -> dict[str, Any]:
    """What the drawn networks do not reach."""
    measured = coverage.Coverage(
        branch=True,
        include=[
            str(PACKAGE / folder) for folder in ("lowering/*.py", "devices/cpu/emit/*.py", "devices/cpu/memory.py")
        ],
        data_file=None,
        config_file=False,
    )
    for elsewhere in (r"raise NotImplementedError", r"# guard mode"):
        measured.exclude(elsewhere)
    measured.start()
    names = draw_everything()
    measured.stop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        measured.json_report(outfile=str(path))
        files = json.loads(path.read_text("utf-8"))["files"]
    from rop.kernels.warm import all_kernels

    in_passes = [kernel.name for kernel in all_kernels() if not kernel.name.startswith(OF_KFAC)]
    return {
        "kernels": sorted(name for name in in_passes if name not in names),
        "lines": {name: found["missing_lines"] for name, found in files.items() if found["missing_lines"]},
        "branches": {name: found["missing_branches"] for name, found in files.items() if found["missing_branches"]},
        "files": len(files),
    }


if __name__ == "__main__":
    os.environ.setdefault("ROP_QUIET", "1")
    json.dump(missing(), sys.stdout, indent=1)
