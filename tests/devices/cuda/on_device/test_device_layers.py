"""Every layer and every loss with all their options on a GPU: the same numbers as the CPU engine's, at every order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rop
import rop.layers
from rop.lowering.linear_maps import ToMaps, ToSamples
from tests.devices.cuda.on_device.compare import affordable, by_passes, check_device
from tests.helpers.cases import CASES, LOSS_CASES, Case, LossCase, made
from tests.helpers.strategies import seeds
from tests.helpers.zoo import drawn_state, normal
from tests.layers.test_layers import PLACES, targets_for
from tests.layers.test_losses import network

BATCHES = st.sampled_from([1, 5, 31, 32, 33])  # a warp has 32 lanes
JET, PASSES = st.just(rop.Objective.jet), st.just(by_passes)
few = settings(settings.get_profile("device"))
every_precision = pytest.mark.parametrize(
    "dtype, ways",
    [(np.float64, JET), (np.float64, PASSES), (np.float32, JET | PASSES)],
    ids=["float64-jet", "float64-passes", "float32"],
)


def test_every_layer_and_loss_is_covered() -> None:
    assert {case.name for case in CASES} == set(rop.layers.LAYERS)
    assert {case.name for case in LOSS_CASES} == set(rop.layers.LOSSES)


@every_precision
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@few
@given(data=st.data(), place=st.sampled_from(PLACES), training=st.booleans(), seed=seeds)
def test_layer_agrees_with_the_cpu(
    case: Case, dtype: Any, ways: Any, data: st.DataObject, place: Any, training: bool, seed: int
) -> None:
    arguments, shapes = data.draw(case.drawn)
    batch = max(case.least_batch, data.draw(BATCHES))
    layer = made(case, arguments)
    net, shape = place(layer, shapes)
    affordable(net, shape, batch)
    loss, y = targets_for(place, layer, shapes, batch, seed)
    state = None if training else drawn_state(net, seed)
    check_device(
        net, loss, normal(seed, (batch, *shape)), y, dtype, data.draw(ways), seed=seed, training=training, state=state
    )


@every_precision
@pytest.mark.parametrize("case", LOSS_CASES, ids=lambda case: case.name)
@few
@given(data=st.data(), batch=BATCHES, seed=seeds)
def test_loss_agrees_with_the_cpu(
    case: LossCase, dtype: Any, ways: Any, data: st.DataObject, batch: int, seed: int
) -> None:
    arguments, shape, target = data.draw(case.drawn)
    net, input_shape = network(shape, [rop.LogSoftmax(1)] if case.name == "NLL" else [])
    affordable(net, input_shape, batch)
    loss = rop.layers.LOSSES[case.name](**arguments)
    check_device(net, loss, normal(seed, (batch, *input_shape)), target(seed, batch), dtype, data.draw(ways), seed=seed)


def test_every_operation_has_an_emitter() -> None:
    from rop.devices.cpu.emit.base import REGISTRY as ON_CPU
    from rop.devices.cuda.emit.base import REGISTRY as ON_CUDA

    assert set(ON_CPU.all()) - {ToMaps, ToSamples} == set(ON_CUDA.all())  # a GPU has no pixel lanes
