"""No kernel that the engine can ask for is left out of what test_cuda_compile.py and test_cuda_ptx.py examine.

tests/devices/cuda/on_device/conftest.py demands the same of every kernel that is launched there.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rop
from rop.layers import LAYERS
from tests.devices.cuda.on_device.test_device_engine import NETWORKS
from tests.helpers.cuda_cases import CASES
from tests.helpers.cuda_requests import JOINS, Network, factories, requested, samples, specialisations
from tests.helpers.strategies import Problem, cnns, dags, mlps, rectified_nets
from tests.helpers.zoo import settings

pytestmark = pytest.mark.skipif(
    find_spec("numba_cuda") is None, reason="numba-cuda is not installed: pip install 'rop[cuda-test]'"
)


def assert_known(network: Network) -> None:
    unknown = set(network.requests()) - requested()
    assert not unknown, f"not examined: {sorted(map(str, unknown))}"


def test_every_layer_is_lowered() -> None:
    assert set(samples()) | set(JOINS) == set(LAYERS)


def test_every_kernel_is_asked_for_and_has_a_case() -> None:
    """A kernel that nobody launches, and a case of a kernel that is not there, are left over from something."""
    assert set(factories()) == set(CASES)
    assert not [kernel for kernel, options in specialisations().items() if not options]


def test_kernels_are_in_the_same_files_on_both_devices() -> None:
    """But for the interpreter, vector code, mathematics, pixel lanes and K-FAC of a CPU, and launches and sums of a
    GPU."""
    kernels = Path(rop.__file__).parent / "kernels"
    cpu, cuda = ({file.stem for file in (kernels / device).glob("*.py")} for device in ("cpu", "cuda"))
    on_pixel_lanes = {"reads", "phases", "packing", "strips", "depthwise", "tiles", "winograd", "winograd_gradient"}
    of_kfac = {"factors", "preconditioner"}
    assert cpu - cuda == {"interpreter", "mathematics", "vector"} | on_pixel_lanes | of_kfac
    assert cuda - cpu == {"compile", "sums"}


def test_every_option_is_asked_for() -> None:
    """Both sizes of tiles, forward and adjoint; logarithms; labels and numbers; one activation per scalar function."""
    from rop.kernels.cuda.bilinear import TILES
    from rop.layers import ACTIVATIONS, LOSSES, elementwise, loss

    def seen(kernel: str, *options: str) -> set[Any]:
        return {tuple(one[option] for option in options) for one in specialisations()[kernel]}

    assert seen("bilinear.products", "adjoint", "tile") == {(a, tile) for a in (False, True) for tile in TILES}
    assert seen("bilinear.weight_gradient", "tile") == {(tile,) for tile in TILES}
    assert seen("softmax.forward", "log") == seen("softmax.backward", "log") == {(False,), (True,)}
    assert seen("loss.cross_entropy", "dense") == {(False,), (True,)}
    functions = {(kind().function,) for kind in ACTIVATIONS.values()} | {(elementwise.gelu_tanh,)}
    assert functions <= seen("elementwise.forward", "of") == seen("elementwise.backward", "of")
    separable = {(kind.function,) for kind in LOSSES.values() if issubclass(kind, loss.Separable)}
    assert separable == seen("loss.separable", "of")


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize("training", [True, False])
def test_known_networks_ask_for_nothing_else(training: bool, lanes: int) -> None:
    for setting in settings().values():
        for dense in (True, False):
            assert_known(Network(setting.net, setting.shape, setting.loss, dense, lanes, training))
    for make in NETWORKS:
        net, shape = make()
        assert_known(Network(net, shape, rop.MSE(), True, lanes, training))


@given(problem=st.one_of(mlps(True), cnns(True), dags(False), dags(True), rectified_nets()), training=st.booleans())
def test_drawn_networks_ask_for_nothing_else(problem: Problem, training: bool) -> None:
    assert_known(Network(problem.net, problem.shape, rop.CrossEntropy(), False, training=training))
