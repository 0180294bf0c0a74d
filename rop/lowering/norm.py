"""Normalisation of each sample by statistics of its own: the sets are standardised, then each channel is scaled."""

from __future__ import annotations

from rop.graph import Node
from rop.layers.norm import GroupNorm, InstanceNorm2d, LayerNorm, LayerNorm2d, RMSNorm, SampleNorm
from rop.lowering.batchnorm import ChannelMap
from rop.lowering.linear_maps import ToMaps, ToSamples, in_order
from rop.lowering.plan import Operation, Plan
from rop.lowering.registry import lowers
from rop.lowering.values import ORDERS, Value


class Standardise(Operation):
    """n = r c, set by set. A set is some neighbouring rows of each of some pixels."""

    def __init__(self, plan: Plan, layer: SampleNorm, x: Value):
        self.layer = layer
        self.reads(x)
        levels = frozenset(ORDERS) if x.levels & {1, 2} else frozenset({0})
        self.y = Value(x.shape, levels, x.needs_gradient, plan.rows_like(x, levels), x.pixels, x.channels)
        self.sets, self.blocks = x.pixels, 1
        if layer.groups is not None:
            self.sets, self.blocks = layer.groups, x.pixels
        self.rows = x.rows // (self.sets * self.blocks)  # of a block, one of which each pixel of the set has


class Scale(ChannelMap):
    """y = γ n + β, channel by channel."""


@lowers(LayerNorm, RMSNorm, LayerNorm2d, GroupNorm, InstanceNorm2d)
def lower_sample_norm(plan: Plan, node: Node, layer: SampleNorm, inputs: list[Value]) -> Value:
    """Two operations. Sums over the pixels of a sample are sums of rows, so they are made with a lane for each
    sample."""
    x = in_order(plan, inputs[0])
    moves = layer.groups is not None and bool(x.buffer.pixels)
    if moves:
        x = plan.add(ToSamples(plan, x, flat=False))
    y = plan.add(Standardise(plan, layer, x))
    if moves:
        y = plan.add(ToMaps(plan, y))
    if not layer.has_weight:
        return y
    return plan.add(Scale(plan, layer, y))
