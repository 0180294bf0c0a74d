"""From a graph to operations: what is computed, in which order and where the rows of values lie, on any device.

``outline`` walks the graph once and makes an *operation* per node (several nodes may share one: a ReLU is fused into
the operation before it): which values it reads and gives, which orders of them are not zero, where gradients flow.
Nothing here knows a device or a kernel. The devices make instructions of the operations, order by order
(rop/devices/<device>/emit): order k reads orders ≤ k and writes order k.

Files are named by families of layers, as in rop/kernels/<device> and rop/devices/<device>/emit. ``lowers`` in each of
them says which layers it is for.
"""

from __future__ import annotations

from typing import Any

from rop.graph import Graph, Node
from rop.layers import Loss
from rop.layers.base import Shape
from rop.layers.kinds import kind_of
from rop.lowering.data import data
from rop.lowering.linear_maps import with_sample_lanes
from rop.lowering.loss import LossOperation, loss_kind
from rop.lowering.plan import Operation, Plan
from rop.lowering.registry import LOWERINGS, import_families, lowers
from rop.lowering.values import ORDERS, Buffer, Value

__all__ = ["LOWERINGS", "ORDERS", "Buffer", "Operation", "Plan", "Value", "check_kinds", "lowers", "outline"]

import_families(__name__)


def check_kinds(graph: Graph, loss: Loss | None = None) -> None:
    """Refuses layers and losses that the engine has no formulas for."""
    for node in graph.nodes[1:]:
        assert node.layer is not None
        kind_of(node.layer, LOWERINGS, graph.where(node))
    if loss is not None:
        loss_kind(loss)


def outline(
    graph: Graph,
    input_shape: Shape,
    training: bool | None,
    loss: Loss | None,
    dtype: Any,
    pixel_lanes: bool = False,
    winograd: bool = True,
) -> Plan:
    """Operations, values and gradients of a network on inputs of this shape; gradients if there is a loss.

    ``pixel_lanes`` says how maps lie, see values.py; ``winograd`` whether convolutions may be computed by Winograd's
    algorithm; ``training`` is the mode of batchnorm layers, None: that of each layer's origin.
    """
    check_kinds(graph, loss)
    plan = Plan(graph, input_shape, training, loss is not None, dtype, pixel_lanes, winograd)
    for node in graph.nodes:
        plan.values[node] = _lower(plan, node)
    plan.output = with_sample_lanes(plan, plan.values[graph.output])
    if loss is not None:
        plan.operations.append(LossOperation(plan, loss, plan.output))
        for operation in reversed(plan.operations):
            operation.plan_backward(plan)
    return plan


def _lower(plan: Plan, node: Node) -> Value:
    """The value of a node. The operations that were made for it can name the layer in messages."""
    layer, before = node.layer, len(plan.operations)
    if layer is None:
        return data(plan, node)
    lowering = LOWERINGS[kind_of(layer, LOWERINGS, plan.graph.where(node))]
    value = lowering(plan, node, layer, [plan.values[source] for source in node.inputs])
    for operation in plan.operations[before:]:
        operation.where = plan.graph.where(node)
    return value
