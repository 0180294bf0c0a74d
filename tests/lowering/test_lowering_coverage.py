"""The drawn networks reach every kernel and every branch of rop/lowering and rop/devices/cpu/emit."""

from __future__ import annotations

import json

import pytest

from tests.helpers.processes import run_python


@pytest.mark.thorough
def test_the_drawn_networks_reach_every_kernel_and_every_branch() -> None:
    """A kernel or branch that is missing here is one that no property test looks at: draw networks that need it."""
    found = json.loads(
        run_python(
            "import runpy; runpy.run_module('tests.lowering_coverage', run_name='__main__')", ROP_QUIET="1"
        ).stdout
    )
    assert found.pop("files") >= 22
    assert found == {"kernels": [], "lines": {}, "branches": {}}
