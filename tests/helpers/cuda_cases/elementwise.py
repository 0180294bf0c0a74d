"""Activations."""

from __future__ import annotations

from typing import Any

from rop.layers import elementwise
from tests.helpers.cases import bell
from tests.helpers.cuda_cases.common import LANES, Array, Case, Setting, case, named
from tests.helpers.cuda_cases.series import Jet, scalars
from tests.helpers.cuda_requests import steep

PARAMETERS: dict[Any, tuple[float, ...]] = {
    elementwise.softplus: (1.5, 2.0),
    elementwise.hardtanh: (-0.5, 1.25),
    elementwise.elu: (0.75, 1.5),
    elementwise.celu: (2.0,),
    steep: (0.75,),
    bell: (2.0, 3.0),
}


def _activation(s: Setting) -> tuple[dict[str, Any], dict[int, Array], Jet, Jet, Jet]:
    of = s.options["of"]
    parameters = PARAMETERS.get(of, ())
    arrays, x = s.jet(11, LANES, seed=1)
    y, d1, d2, d3 = scalars(of, x.c[0], *parameters)
    a, b = (*parameters, 0.0, 0.0)[:2]
    return {"a": a, "b": b}, arrays, x, x.through(y, d1, d2), x.through(d1, d2, d3)


@case("elementwise.forward")
def activation_case(s: Setting) -> Case:
    numbers, arrays, _, y, _ = _activation(s)
    empty, expected = s.outputs("y", y)
    return Case({**empty, **named("x", arrays), **numbers}, expected)


@case("elementwise.backward")
def activation_back_case(s: Setting) -> Case:
    numbers, arrays, x, _, slope = _activation(s)
    gradients, g = s.full().jet(*x.c[0].shape, seed=2)
    empty, expected = s.outputs("h", slope * g)
    return Case({**empty, **named("x", arrays), **named("g", gradients), **numbers}, expected)
