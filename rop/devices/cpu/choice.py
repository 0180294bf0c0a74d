"""How a network lies in the CPU's memory: with a lane for each sample, or for each pixel of each sample; and how a
batch is divided into tiles.

Both choices depend on the network, the size of its inputs and the whole batch only: never on threads, on the memory
limit or on the machine, so that none of these changes a bit of a result.
"""

from __future__ import annotations

import math
import os

from rop.arguments import check_choice
from rop.devices import LAYOUTS
from rop.devices.cpu.emit.winograd import LEAST_CHANNELS
from rop.graph import Graph
from rop.kernels.cpu.gemm import SPAN
from rop.layers import Conv2d
from rop.layers.base import Shape
from rop.lowering.geometry import Geometry
from rop.lowering.plan import Plan

LANES = (16, 32, 64)  # possible numbers of lanes of a tile; a batch uses the largest one that it exceeds
STRIP = 32  # positions of a strip of pixel lanes, for the estimate
# Of products on pixel lanes: packing a row of a strip, and the sums and blocks of a weight gradient, cost as much as so
# many more rows or channels, …
FEWER_ROWS, FEWER_CHANNELS = 16.0, 8.0
WINOGRAD_GAIN = 1.7  # … and Winograd's algorithm takes so much less
DEPTHWISE_COST = 10.0  # so much more than a product costs each of a depthwise convolution on sample lanes
ONE_TILE = 2.0  # so much longer takes a batch of one tile of samples, because threads have nothing to share
PIXEL_BATCH = 32  # a batch of at most this size is one tile on pixel lanes; of others …
PIXEL_TILE_BYTES = 1 << 27  # … one order of a tile should not take more than this, …
PIXEL_TILE_LEAST = 16  # … but a tile has at least this many samples


def choose_layout(net: Graph, shape: Shape, batch: int, asked: str | None = None, winograd: bool = True) -> str:
    """The layout that is asked for, or the one with less work by the estimate of ``layout_costs``.

    >>> import rop
    >>> net = rop.Sequential(rop.Conv2d(3, 64, 3, padding=1), rop.Flatten(), rop.Linear(64 * 32 * 32, 10))
    >>> choose_layout(net, (3, 32, 32), 4), choose_layout(net, (3, 32, 32), 4, "samples")
    ('pixels', 'samples')
    """
    asked = asked or os.environ.get("ROP_LAYOUT") or None
    if not any(len(one) == 3 for one in net.shapes(shape).values()):
        return "samples"  # there are no pixels
    if asked is not None:
        return check_choice("Objective", "layout", asked, LAYOUTS)
    samples, pixels = layout_costs(net, shape, batch, winograd)
    return "pixels" if pixels < samples else "samples"


def layout_costs(net: Graph, shape: Shape, batch: int, winograd: bool = True) -> tuple[float, float]:
    """Vector products per sample of all convolutions with sample lanes and with pixel lanes.

    Sample lanes leave padding of images out, but a tile has at least 16 lanes, and a batch of one tile occupies one
    thread; pixel lanes multiply padding, fill strips of positions, and pack what these read, but have Winograd's
    algorithm, unless it is switched off.
    """
    shapes = net.shapes(shape)
    samples = pixels = 0.0
    for node in net.nodes:
        layer = node.layer
        if isinstance(layer, Conv2d):
            image, output = shapes[node.inputs[0]][1:], shapes[node][1:]
            geometry = Geometry(image, output, layer.kernel_size, layer.stride, layer.padding, layer.dilation)
            weights = layer.in_channels * layer.out_channels // layer.groups
            depthwise = layer.groups == layer.in_channels == layer.out_channels > 1
            samples += weights * geometry.triples()[0].size * (DEPTHWISE_COST if depthwise else 1.0)
            positions = math.prod(output) * batch
            filled = -(-positions // STRIP) * STRIP / positions
            cost = 1.0 if depthwise else _pixel_cost(layer, winograd)
            pixels += weights * math.prod(output) * geometry.taps * filled * cost
    least = LANES[0]
    lanes = -(-batch // least) * least / batch
    return samples * lanes * (ONE_TILE if batch <= least else 1.0), pixels


def _pixel_cost(layer: Conv2d, winograd: bool) -> float:
    """What a product on pixel lanes costs, next to one on sample lanes."""
    rows, channels = layer.out_channels // layer.groups, layer.in_channels // layer.groups
    plain = layer.kernel_size == (3, 3) and layer.stride == layer.dilation == (1, 1) and layer.groups == 1
    transformed = winograd and plain and min(rows, channels) >= LEAST_CHANNELS
    return (1 + FEWER_ROWS / rows + FEWER_CHANNELS / channels) / (WINOGRAD_GAIN if transformed else 1.0)


def choose_lanes(plan: Plan, batch: int) -> int:
    """Samples of a tile. With sample lanes, images fill the cache with few lanes: what a micro-kernel takes at a time;
    of small vectors a tile takes more, as long as several tiles are left for threads."""
    least = LANES[0]
    if any(value.pixels > 1 for value in plan.values.values()):
        return max(least, SPAN // plan.itemsize) if batch > least else least
    return next((lanes for lanes in reversed(LANES) if batch > lanes), least)


def choose_images(plan: Plan, batch: int, at_once: bool) -> int:
    """Samples of a tile with pixel lanes: the whole batch if it is small or if its samples influence each other, else
    as many as the memory of a tile allows."""
    if at_once or plan.coupled or batch <= PIXEL_BATCH:
        return batch
    per_image = plan.itemsize * sum(buffer.rows * buffer.pixels for buffer in plan.buffers if 0 in buffer.orders)
    most = max(1, PIXEL_TILE_BYTES // max(1, per_image * PIXEL_TILE_LEAST)) * PIXEL_TILE_LEAST
    return min(batch, most)
