"""Products of two values: which numbers of the result and of the factors belong together, as axes with steps."""

from __future__ import annotations

from rop.devices.cpu.code import Code, Ref
from rop.devices.cpu.emit.base import Emitter, emits, sum_of
from rop.devices.cpu.memory import ZEROS
from rop.kernels.cpu import linear_maps, product
from rop.lowering.product import Multiplication
from rop.lowering.values import ORDERS, Buffer, Value, cauchy_pairs

Axis = tuple[int, ...]  # its length, and the bytes from number to number of each value; see rop/kernels/cpu/product.py
Values = tuple[Value, Value, Value]  # the result and its factors
POINT: Axis = (1, 0, 0, 0)
AXES = 3  # of the kernel


def joined(axes: list[Axis], least: int) -> list[Axis]:
    """The same numbers with as few axes as possible, but so many at least: an axis of one number is left out, and two
    that all values go through alike become one. The last one is kept.

    >>> joined([(3, 24, 24, 0), (2, 12, 12, 0), (3, 4, 4, 4)], 2)
    [(6, 12, 12, 0), (3, 4, 4, 4)]
    >>> joined([(1, 0, 0, 0), (2, 12, 12, 12), (3, 4, 4, 4)], 2)
    [(1, 0, 0, 0), (6, 4, 4, 4)]
    """
    kept: list[Axis] = []
    for axis in [one for one in axes[:-1] if one[0] > 1] + axes[-1:]:
        if kept and kept[-1][1:] == tuple(axis[0] * step for step in axis[1:]):
            axis = (kept.pop()[0] * axis[0], *axis[1:])
        kept.append(axis)
    return [POINT] * (least - len(kept)) + kept


@emits(Multiplication)
class EmitMultiplication(Emitter):
    """y = a ⊙ b, and likewise the gradients of a and b."""

    operation: Multiplication

    def forward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        a, b = sorted(op.x, key=self._repeats)  # what has one number for the innermost axis is the right factor
        terms = [(layout.rows(a.buffer, i), layout.rows(b.buffer, j)) for i, j in cauchy_pairs(k, a.levels, b.levels)]
        if terms:
            self._products(code, layout.rows(op.y.buffer, k), terms, (op.y, a, b), add=False)

    def backward(self, code: Code, k: int, direction: int) -> None:
        op, layout = self.operation, self.layout
        for x, other, h, accumulates in zip(op.x, op.x[::-1], op.h, op.accumulates, strict=True):
            if h is None:
                continue
            is_sum = (h.rows, h.pixels) != (op.y.buffer.rows, op.y.buffer.pixels)
            if is_sum and not accumulates:
                self._clear(code, h, k)
            pairs = cauchy_pairs(k, ORDERS, other.levels)
            terms = [(layout.rows(op.g, i), layout.rows(other.buffer, j)) for i, j in pairs]
            self._products(code, layout.rows(h, k), terms, (x, op.y, other), is_sum or accumulates)

    def _clear(self, code: Code, h: Buffer, k: int) -> None:
        """Zeros in all lanes of a gradient, also in those that have no sample: sums are added to them."""
        y, count = self.layout.rows(h, k), self.layout.count(h)
        self.on_rows(code, linear_maps.copy_rows, h, y=y, x=ZEROS, pixels=1, y_step=0, x_step=0, count=count)

    def _products(self, code: Code, y: Ref, terms: list[tuple[Ref, Ref]], values: Values, add: bool) -> None:
        """The instruction. Slices divide an axis along which the result has numbers of its own: sums are not shared."""
        axes, buffer = self._axes(values), self.operation.y.buffer
        if code.slices:
            divided = next((axis for axis in axes[:-1] if axis[1]), POINT)
            outer, middle, inner = divided, *joined([axis for axis in axes if axis is not divided], AXES - 1)
        else:
            outer, middle, inner = joined(axes, AXES)
        code.rows(
            product.products,
            outer[0],
            buffer.rows * self.layout.row_size(buffer) // outer[0],
            y=y,
            terms=sum_of(terms),
            outer=outer,
            middle=middle,
            inner=inner,
            add=int(add),
        )

    def _repeats(self, x: Value) -> bool:
        """Whether all pixels of y go with one of x."""
        return (x.pixels, x.buffer.pixels or 1) != (self.operation.y.pixels, self.operation.y.buffer.pixels or 1)

    def _axes(self, values: Values) -> list[Axis]:
        """Pixel, channel and lane of y; on pixel lanes channel, sample and, if there are several, pixel. A vector
        beside a map has its samples side by side, as a map of one pixel has."""
        y, layout, size = self.operation.y, self.layout, self.layout.itemsize
        rows = [layout.row_size(x.buffer) for x in values]
        channel = (y.channels, *(row if x.channels > 1 else 0 for x, row in zip(values, rows, strict=True)))
        if not y.buffer.pixels:
            pixel = (x.channels * row if x.pixels > 1 else 0 for x, row in zip(values, rows, strict=True))
            return [(y.pixels, *pixel), channel, (layout.row_lanes(y.buffer), size, size, size)]
        sample = (layout.images, *(size * (x.buffer.pixels or 1) for x in values))
        pixels = (y.buffer.pixels, *(size if x.buffer.pixels > 1 else 0 for x in values))
        return [channel, sample] + ([pixels] if y.buffer.pixels > 1 else [])
