"""Linear and Conv2d."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rop.devices.cpu.code import Buffer, Code, Operand, Ref
from rop.graph import Node
from rop.kernels.cpu import bilinear, select
from rop.kernels.cpu.gemm import BY_COLUMNS, BY_ROWS, DOT_COLUMNS, IN_PANELS, PANEL, SPAN
from rop.kernels.cpu.vector import BLOCK
from rop.layers import Conv2d, Linear
from rop.layers.base import Shape
from rop.lowering.geometry import Geometry
from rop.lowering.plan import NOWHERE, Operation, Plan, Value

WIDE = 16384  # weights of a linear layer from which its gradient is a matrix product over all tiles
REGROUP = 48  # fan-in from which copying the output gradient into blocks pays
SLICES = 8  # units for what is divided among threads


def segments(
    first: np.ndarray, offset: np.ndarray, owner: np.ndarray, length: int, row_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Runs of ``length`` rows (first j, byte offset), sorted by owner -> segments (first j, offset, length) and their
    owners; runs that follow each other in both are joined."""
    joined = np.zeros(first.size, bool)
    joined[1:] = (
        (owner[1:] == owner[:-1])
        & (first[1:] == first[:-1] + length)
        & (offset[1:] == offset[:-1] + length * row_bytes)
    )
    starts = np.flatnonzero(~joined)
    lengths = np.diff(np.append(starts, first.size)) * length
    return np.stack([first[starts], offset[starts], lengths], axis=1), owner[starts]


def panels(rows: int) -> list[tuple[int, int]]:
    """First row and number of rows of each panel, as rop/kernels/cpu/gemm.py divides them."""
    count = -(-rows // PANEL)
    sizes = [rows // count + (i < rows % count) for i in range(count)]
    return [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]


def packed(index: np.ndarray) -> np.ndarray:
    """Positions (row, j) -> panels [j][row in the panel], flat."""
    return np.concatenate([index[first : first + m].T.ravel() for first, m in panels(len(index))])


class Products(Operation):
    """Linear and Conv2d: what both have in common. How the gradient of W is made is each one's own business."""

    layer: Linear | Conv2d
    rows: int  # outputs and inputs (of a pixel); set by Linear and Conv2d
    inputs: int
    groups = 1
    forward_layout = backward_layout = IN_PANELS  # how W lies for y = W x and for Wᵀ δ

    def __init__(self, plan: Plan, layer: Linear | Conv2d, x: Value, shape: Shape, geometry: Geometry):
        self.layer, self.source, self.geometry = layer, x, geometry
        self.reads(x)
        x.flow.product_uses += 1
        self.pixels, self.image_pixels = math.prod(geometry.output), math.prod(geometry.image)
        self.group_rows, self.group_inputs = self.rows // self.groups, self.inputs // self.groups
        self.fan = geometry.taps * self.group_inputs
        self.weight_at = plan.graph.offset(layer, "weight")
        self.bias_at = plan.graph.offset(layer, "bias") if layer.bias else None
        self.y = plan.value(shape, frozenset({0, 1} | ({2} if x.levels & {1, 2} else set())), True)
        self.relu = False  # set when a ReLU disappears into this product
        self.tied = sum(other.layer is layer for other in plan.graph.nodes) > 1
        self._tables: dict[str, Any] = {}

    # Weights: where they lie in w, and as panels. ---------------------------------------------------------------------
    def weight_index(self) -> np.ndarray:
        """(group, row, tap, channel) -> position in w."""
        shape = (self.groups, self.group_rows, self.group_inputs, self.geometry.taps)
        index = (self.weight_at + np.arange(math.prod(shape)).reshape(shape)).transpose(0, 1, 3, 2)
        if self.source.row_order is not None:  # rows of x in another order: the columns go along
            index = index[..., np.argsort(self.source.row_order)]
        return index

    def _pack(self, plan: Plan) -> None:
        """Panels for the forward product and for the input gradient, where W is not used as it lies."""
        index = self.weight_index()
        if self.forward_layout == IN_PANELS:
            self.forward_at = plan.pack([packed(one.reshape(len(one), -1)) for one in index])
        if self.backward_layout == IN_PANELS and plan.gradients and self.source.needs_gradient:
            self._pack_backward(plan, index)

    def _pack_backward(self, plan: Plan, index: np.ndarray) -> None:
        back = index[:, :, self.geometry.reversed_tap(np.arange(self.geometry.taps))]
        self.backward_at = plan.pack([packed(one.transpose(2, 1, 0).reshape(self.group_inputs, -1)) for one in back])

    def _forward_weights(self, plan: Plan, j: int, direction: int, group: int) -> Ref:
        """Order j of the weights as the forward product wants them."""
        if self.forward_layout == IN_PANELS:
            return plan.panel("packed", j, direction, self.forward_at + group * self.group_rows * self.fan)
        return plan.parameter(j, direction, self.weight_at)

    def _backward_weights(self, plan: Plan, j: int, direction: int, group: int) -> Ref:
        """Order j of the transposed weights."""
        if self.backward_layout == IN_PANELS:
            return plan.panel("packed", j, direction, self.backward_at + group * self.group_rows * self.fan)
        return plan.parameter(j, direction, self.weight_at)

    # Layout of the gradients. -----------------------------------------------------------------------------------------
    def plan_gradients(self, plan: Plan) -> None:
        super().plan_gradients(plan)
        self.delta = plan.buffer(self.y.rows) if self.relu and not self.y.flow.masked_by_user else self.g

    def plan_rooms(self, plan: Plan) -> None:
        self._pack(plan)
        if not plan.gradients:
            return
        if self.bias_at is not None:
            self.bias_share = plan.partial(self.bias_at + np.arange(self.rows), not plan.first_use(self.layer, "bias"))
        self._plan_weight_gradient(plan)

    def _plan_weight_gradient(self, plan: Plan) -> None:
        raise NotImplementedError

    # Tables, made once. -----------------------------------------------------------------------------------------------
    def _table(self, name: str, make: Callable[[Plan], Any], plan: Plan) -> Any:
        if name not in self._tables:
            self._tables[name] = make(plan)
        return self._tables[name]

    def _forward_bounds(self, plan: Plan) -> int:
        pixel_in, pixel_out, tap = self.geometry.triples()
        rows, owner = segments(
            tap * self.group_inputs,
            pixel_in * self.inputs * plan.lane_bytes,
            pixel_out,
            self.group_inputs,
            plan.lane_bytes if self.groups == 1 else -1,
        )
        return plan.tables.bounded(rows, owner, self.pixels)

    def _backward_bounds(self, plan: Plan) -> int:
        pixel_in, pixel_out, tap = self.geometry.triples()
        tap = self.geometry.reversed_tap(tap)
        order = np.lexsort((tap, pixel_in))
        pixel_in, pixel_out, tap = pixel_in[order], pixel_out[order], tap[order]
        rows, owner = segments(
            tap * self.group_rows,
            pixel_out * self.rows * plan.lane_bytes,
            pixel_in,
            self.group_rows,
            plan.lane_bytes if self.groups == 1 else -1,
        )
        return plan.tables.bounded(rows, owner, self.image_pixels)

    # Passes. ----------------------------------------------------------------------------------------------------------
    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        """y_k = Σ_j W_j x_{k−j} + b_k."""
        if k not in self.y.levels:
            return
        x = self.source
        factors = [(j, k - j) for j in (0, 1) if k - j in x.levels]
        bias, bias_step = Ref("zeros", 0, 0), 0
        if self.bias_at is not None and k < 2:
            bias, bias_step = plan.parameter(k, direction, self.bias_at), plan.itemsize
        for group in range(self.groups):
            row = group * self.group_rows
            terms = [
                (self._forward_weights(plan, j, direction, group), plan.at(x.buffer, i, group * self.group_inputs))
                for j, i in factors
            ]
            code.tile(
                bilinear.products,
                c=plan.at(self.y.buffer, k, row),
                c_step=self.rows * plan.lane_bytes,
                pixels=self.pixels,
                rows=self.group_rows,
                fan=self.fan,
                layout=self.forward_layout,
                lane_bytes=plan.lane_bytes,
                bounds=self._table("forward", self._forward_bounds, plan),
                bias=bias.plus(row * bias_step),
                bias_step=bias_step,
                relu=int(self.relu and k == 0),
                mask=plan.at(self.y.buffer, 0, row) if self.relu and k > 0 else 0,
                terms=len(terms),
                **_factors(terms, 2),
            )

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if self.delta is not self.g:
            code.tile(
                select.rectify,
                y=plan.at(self.delta, k),
                x=plan.at(self.g, k),
                mask=plan.at(self.y.buffer, 0),
                slope=0.0,
                count=self.y.rows * plan.lanes,
            )
        if self.bias_at is not None and code.wanted:
            code.tile(
                bilinear.bias_gradient,
                d=plan.share(self.bias_share, code.slot),
                g=plan.at(self.delta, k),
                rows=self.rows,
                pixels=self.pixels,
                lane_bytes=plan.lane_bytes,
            )
        self._weight_gradient(plan, code, k)
        if self.h[0] is not None:
            self._input_gradient(plan, code, k, direction, self.h[0])

    def _weight_gradient(self, plan: Plan, code: Code, k: int) -> None:
        """Σ_j δ_j x_{k−j} of a tile."""
        raise NotImplementedError

    def _input_gradient(self, plan: Plan, code: Code, k: int, direction: int, h: Buffer) -> None:
        """h_k = Σ_j W_jᵀ δ_{k−j}, through the ReLU that went into x."""
        masked = self.source.flow.masked_by_user
        for group in range(self.groups):
            channel = group * self.group_inputs
            terms = [
                (self._backward_weights(plan, j, direction, group), plan.at(self.delta, k - j, group * self.group_rows))
                for j in (0, 1)
                if k - j >= 0
            ]
            code.tile(
                bilinear.products,
                c=plan.at(h, k, channel),
                c_step=self.inputs * plan.lane_bytes,
                pixels=self.image_pixels,
                rows=self.group_inputs,
                fan=self.geometry.taps * self.group_rows,
                layout=self.backward_layout,
                lane_bytes=plan.lane_bytes,
                bounds=self._table("back", self._backward_bounds, plan),
                bias=Ref("zeros", 0, 0),
                bias_step=0,
                relu=0,
                mask=plan.at(self.source.buffer, 0, channel) if masked else 0,
                terms=len(terms),
                **_factors(terms, 2),
            )


class LinearProducts(Products):
    """Linear. The gradient of W is a matrix product, too, with xᵀ as its second factor: of each tile, or of wide layers
    over all tiles at once."""

    layer: Linear

    def __init__(self, plan: Plan, node: Node, layer: Linear, x: Value):
        self.rows, self.inputs = layer.out_features, layer.in_features
        super().__init__(plan, layer, x, plan.shapes[node], Geometry((1, 1), (1, 1)))
        is_large = self.rows * self.fan >= WIDE
        self.is_wide = is_large and not self.tied
        if x.row_order is None:
            self.forward_layout = BY_ROWS
            self.backward_layout = IN_PANELS if is_large else BY_COLUMNS

    @property
    def _transposes(self) -> bool:
        """Whether panels for the input gradient are made by transposing W as it lies, which is faster for long rows."""
        return self.is_wide and self.forward_layout == BY_ROWS

    def _pack_backward(self, plan: Plan, index: np.ndarray) -> None:
        if self._transposes:
            self.backward_at = plan.reserve("panels", index.size)
        else:
            super()._pack_backward(plan, index)

    def _backward_weights(self, plan: Plan, j: int, direction: int, group: int) -> Ref:
        if self._transposes:
            return plan.panel("panels", j, direction, self.backward_at)
        return super()._backward_weights(plan, j, direction, group)

    def prepare(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if self._transposes and k < 2 and plan.gradients and self.source.needs_gradient:
            code.split(
                SLICES,
                bilinear.pack_transposed,
                w=plan.parameter(k, direction, self.weight_at),
                y=self._backward_weights(plan, k, direction, 0),
                rows=self.rows,
                columns=self.fan,
                part=Ref("number", 0, 1),
                parts=SLICES,
            )

    def _plan_weight_gradient(self, plan: Plan) -> None:
        """Room for xᵀ of each tile, for long rows an odd number of blocks, so that they do not share cache sets; and
        for the gradient, unless it can go straight to w's order (whole blocks of columns only)."""
        per_block = BLOCK // plan.itemsize
        blocks = -(-self.fan // per_block)
        self.columns = (blocks | 1 if self.is_wide else blocks) * per_block
        self.transposed = plan.buffer(self.columns, self.source.levels)
        self.wide_at: int | None = None
        if not self.is_wide:
            self.weight_share = plan.partial(self._padded_index(), not plan.first_use(self.layer, "weight"))
        elif self.source.row_order is not None or self.fan % per_block:
            self.wide_at = plan.reserve("batch", self.rows * self.columns)
            plan.slot(self.wide_at, self._padded_index(), False)

    def _padded_index(self) -> np.ndarray:
        """Position in w of (row, column), flat."""
        index = np.full((self.rows, self.columns), NOWHERE)
        index[:, : self.fan] = self.weight_index().reshape(self.rows, self.fan)
        return index.ravel()

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        super().forward(plan, code, k, direction)
        if plan.gradients and k in self.source.levels:
            counting = self._table("counting", lambda plan: plan.tables.put(np.arange(self.fan)), plan)
            code.tile(
                bilinear.transpose,
                y=plan.at(self.transposed, k),
                y_step=self.columns * plan.itemsize,
                x=plan.at(self.source.buffer, k),
                index=counting,
                rows=self.fan,
                lanes=plan.lanes,
            )

    def _weight_gradient(self, plan: Plan, code: Code, k: int) -> None:
        if code.wanted and not self.is_wide:
            whole = self._table("whole", lambda plan: plan.tables.put([0, 0, plan.lanes]), plan)
            code.tile(
                bilinear.linear_weight_gradient,
                c=plan.share(self.weight_share, code.slot),
                c_step=self.columns * plan.itemsize,
                done=0,
                most=self.columns * plan.itemsize,
                segments=whole,
                count=self._table("one", lambda plan: plan.tables.put([1]), plan),
                **self._gradient_factors(plan, k, None, None),
            )

    def wide(self, plan: Plan, code: Code, k: int, direction: int, out: Ref) -> None:
        """Σ_j δ_j x_{k−j} over all tiles, a span of columns per unit."""
        if not self.is_wide:
            return
        if self.wide_at is None:
            place, step = Ref(out.space, out.offset + self.weight_at * plan.itemsize, SPAN), self.fan * plan.itemsize
        else:
            place, step = Ref("batch", self.wide_at * plan.itemsize, SPAN), self.columns * plan.itemsize
        factors = self._gradient_factors(plan, k, 0, SPAN)
        code.split(
            -(-int(factors["columns"]) // SPAN),
            bilinear.linear_weight_gradient,
            c=place,
            c_step=step,
            done=Ref("number", 0, SPAN),
            most=SPAN,
            segments=Ref("tile_segments", 0, 0),
            count=Ref("tile_count", 0, 0),
            **factors,
        )

    def _gradient_factors(self, plan: Plan, k: int, delta_step: int | None, x_step: int | None) -> dict[str, Any]:
        """What the gradient of a tile and that of all tiles have in common; steps are bytes from a unit to the next."""
        terms = [
            (
                Ref(f"plane{j}", plan.at(self.delta, j).offset, delta_step),
                Ref(f"plane{k - j}", plan.at(self.transposed, k - j).offset, x_step),
            )
            for j in range(k + 1)
            if k - j in self.source.levels
        ]
        return {
            "rows": self.rows,
            "lane_bytes": plan.lane_bytes,
            "x_step": self.columns * plan.itemsize,
            "columns": -(-self.fan * plan.itemsize // BLOCK) * BLOCK,
            "zeros": Ref("zeros", 0, 0),
            "terms": len(terms),
            **_factors(terms, 3),
        }


class ConvProducts(Products):
    """Conv2d. The gradient of W is a sum of products of pixels, lane by lane."""

    layer: Conv2d

    def __init__(self, plan: Plan, node: Node, layer: Conv2d, x: Value):
        self.rows, self.inputs, self.groups = layer.out_channels, layer.in_channels, layer.groups
        shape = plan.shapes[node]
        padding = (layer.padding[0] - x.border[0], layer.padding[1] - x.border[1])
        image = (x.shape[1] + 2 * x.border[0], x.shape[2] + 2 * x.border[1])
        super().__init__(
            plan,
            layer,
            x,
            shape,
            Geometry(image, (shape[1], shape[2]), layer.kernel_size, layer.stride, padding, layer.dilation),
        )

    def _plan_weight_gradient(self, plan: Plan) -> None:
        x, one_group = self.source, self.groups == 1
        self.merged = (
            one_group
            and self.inputs < DOT_COLUMNS
            and self.geometry.padding == (0, 0)
            and self.geometry.dilation[1] == 1
        )
        self.output_blocks = plan.buffer(self.y.rows) if one_group and self.pixels > 1 and self.fan > REGROUP else None
        self.input_blocks = (
            plan.buffer(x.rows, x.levels) if one_group and self.image_pixels > 1 and not self.merged else None
        )
        index = self.weight_index().transpose(0, 2, 3, 1).ravel()  # D[group][(tap, channel), row]
        self.weight_share = plan.partial(index, not plan.first_use(self.layer, "weight"))

    def _dot_groups(self, plan: Plan) -> tuple[int, int]:
        """Groups of lane dots: (first j, number of j, pairs of pixels, number of pairs), one per tap or row of taps."""
        pixel_in, pixel_out, tap = self.geometry.triples()
        width = self.geometry.kernel[1] if self.merged else 1
        groups = []
        for first in range(0, self.geometry.taps, width):
            mine = tap == first
            pairs = np.stack([pixel_out[mine], pixel_in[mine]], axis=1)
            groups.append([first * self.group_inputs, width * self.group_inputs, plan.tables.put(pairs), len(pairs)])
        return plan.tables.put(groups), len(groups)

    def _weight_gradient(self, plan: Plan, code: Code, k: int) -> None:
        x = self.source
        if self.output_blocks is not None:
            code.tile(
                bilinear.regroup_outputs,
                y=plan.at(self.output_blocks, k),
                x=plan.at(self.delta, k),
                pixels=self.pixels,
                rows=self.rows,
                lane_bytes=plan.lane_bytes,
            )
        if self.input_blocks is not None and k in x.levels:
            code.tile(
                bilinear.regroup_inputs,
                y=plan.at(self.input_blocks, k),
                x=plan.at(x.buffer, k),
                pixels=self.image_pixels,
                rows=self.inputs,
                lane_bytes=plan.lane_bytes,
            )
        if not code.wanted:
            return
        outputs, inputs = self.output_blocks or self.delta, self.input_blocks or x.buffer
        groups, count = self._table("dots", self._dot_groups, plan)
        factors = [(j, k - j) for j in range(k + 1) if k - j in x.levels]
        for group in range(self.groups):
            terms = [
                (plan.at(outputs, j, group * self.group_rows), plan.at(inputs, i, group * self.group_inputs))
                for j, i in factors
            ]
            place = plan.share(self.weight_share, code.slot, group * self.group_rows * self.fan)
            code.tile(
                bilinear.conv_weight_gradient,
                d=place,
                rows=self.group_rows,
                terms=len(terms),
                groups=groups,
                group_count=count,
                lane_bytes=plan.lane_bytes,
                a_rows=self.rows,
                a_pixels=self.pixels,
                a_grouped=int(self.output_blocks is not None),
                b_rows=self.inputs,
                b_pixels=self.image_pixels,
                b_grouped=int(self.input_blocks is not None),
                **_factors(terms, 3),
            )


def _factors(terms: list[tuple[Ref, Ref]], most: int) -> dict[str, Operand]:
    """Operands a0, b0, a1, b1, … for up to ``most`` products; the rest is never read."""
    full = terms + [terms[0]] * (most - len(terms))
    return {f"{name}{i}": factor for i, pair in enumerate(full) for name, factor in zip("ab", pair, strict=True)}
