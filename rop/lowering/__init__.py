"""From a graph to instructions: what each family of layers contributes to a pass, order by order.

``outline`` walks the graph once and makes an *operation* per node (several nodes may share one: a ReLU disappears into
the product before it): which values it reads and gives, which orders of them are not zero, where gradients flow. That
much is the same on every device. ``lower`` adds what the CPU needs; there ``operation.forward(plan, code, k, …)`` and
``.backward(…)`` emit the instructions of order k. The law of the engine is visible here: order k reads orders ≤ k and
writes order k. Files are named as in rop/kernels/cpu; rop/devices/cuda/emit makes launches of the same operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rop.graph import Graph, Node
from rop.layers import (
    AdaptiveAvgPool2d,
    Add,
    AvgPool2d,
    Concat,
    Conv2d,
    Flatten,
    Identity,
    Linear,
    LogSoftmax,
    Loss,
    MaxPool2d,
    Softmax,
)
from rop.layers.base import Layer, Shape
from rop.layers.batchnorm import BatchNorm
from rop.layers.elementwise import Elementwise
from rop.layers.kinds import kind_of
from rop.layers.relu import Rectifier
from rop.lowering.batchnorm import BatchNormOperation
from rop.lowering.bilinear import ConvProducts, LinearProducts
from rop.lowering.data import data
from rop.lowering.elementwise import Activation
from rop.lowering.linear_maps import AveragePool, Concatenation, add_up, flatten, in_order
from rop.lowering.loss import KERNELS, LossOperation
from rop.lowering.passes import emit_outputs, emit_pass, result_space
from rop.lowering.plan import Plan, Value
from rop.lowering.select import MaxPool, rectifier
from rop.lowering.softmax import SoftmaxOperation

__all__ = ["Plan", "check_kinds", "emit_outputs", "emit_pass", "lower", "outline", "result_space"]

Lowering = Callable[[Plan, Node, Any, list[Value]], Value]

LOWERINGS: dict[type[Layer], Lowering] = {
    Linear: lambda plan, node, layer, x: plan.add(LinearProducts(plan, node, layer, x[0])),
    Conv2d: lambda plan, node, layer, x: plan.add(ConvProducts(plan, node, layer, x[0])),
    Rectifier: lambda plan, node, layer, x: rectifier(plan, node, layer, x[0]),
    Elementwise: lambda plan, node, layer, x: plan.add(Activation(plan, layer, x[0])),
    MaxPool2d: lambda plan, node, layer, x: plan.add(MaxPool(plan, node, layer, x[0])),
    AvgPool2d: lambda plan, node, layer, x: plan.add(AveragePool(plan, node, layer, x[0])),
    AdaptiveAvgPool2d: lambda plan, node, layer, x: plan.add(AveragePool(plan, node, layer, x[0])),
    Flatten: lambda plan, node, layer, x: flatten(x[0]),
    Identity: lambda plan, node, layer, x: x[0],
    Add: lambda plan, node, layer, x: add_up(plan, x),
    Concat: lambda plan, node, layer, x: plan.add(Concatenation(plan, node, [in_order(plan, one) for one in x])),
    Softmax: lambda plan, node, layer, x: plan.add(SoftmaxOperation(plan, layer, x[0])),
    LogSoftmax: lambda plan, node, layer, x: plan.add(SoftmaxOperation(plan, layer, x[0])),
    BatchNorm: lambda plan, node, layer, x: plan.add(BatchNormOperation(plan, layer, in_order(plan, x[0]))),
}


def check_kinds(graph: Graph, loss: Loss | None = None) -> None:
    """Refuses layers and losses that the engine has no formulas for."""
    for node in graph.nodes[1:]:
        assert node.layer is not None
        kind_of(node.layer, LOWERINGS, graph.where(node))
    if loss is not None:
        kind_of(loss, KERNELS, "loss")


def lower(graph: Graph, input_shape: Shape, training: bool, loss: Loss | None, dtype: Any) -> Plan:
    """The plan of a network for the CPU, on inputs of this shape, with a backward pass if there is a loss."""
    plan = outline(graph, input_shape, training, loss, dtype)
    for operation in reversed(plan.operations):
        operation.plan_rooms(plan)
    return plan


def outline(graph: Graph, input_shape: Shape, training: bool, loss: Loss | None, dtype: Any) -> Plan:
    """Operations, values and gradients of a network, whichever device will run it."""
    check_kinds(graph, loss)
    plan = Plan(graph, input_shape, training, loss is not None, dtype)
    for node in graph.nodes:
        plan.values[node] = _lower(plan, node)
    plan.output = in_order(plan, plan.values[graph.output])
    if loss is not None:
        plan.operations.append(LossOperation(plan, loss, plan.output))
        for operation in reversed(plan.operations):
            operation.plan_backward(plan)
    return plan


def _lower(plan: Plan, node: Node) -> Value:
    layer = node.layer
    if layer is None:
        return data(plan, node)
    lowering = LOWERINGS[kind_of(layer, LOWERINGS, plan.graph.where(node))]
    return lowering(plan, node, layer, [plan.values[source] for source in node.inputs])
