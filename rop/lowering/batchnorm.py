"""Batch normalisation."""

from __future__ import annotations

import numpy as np

from rop.devices.cpu.code import ORDERS, Code, Operand, Ref
from rop.kernels.cpu import batchnorm
from rop.layers.batchnorm import BatchNorm
from rop.lowering.plan import Operation, Plan, Value


class BatchNormOperation(Operation):
    """Batch normalisation: in training mode its sums run over the whole batch, so it cuts a pass into stages."""

    def __init__(self, plan: Plan, layer: BatchNorm, x: Value):
        self.layer = layer
        self.reads(x)
        moving = x.levels & {1, 2} or layer.affine
        self.y = plan.value(x.shape, frozenset(ORDERS) if moving else frozenset({0}), x.needs_gradient or layer.affine)
        self.channels = layer.num_features
        self.frozen = not plan.training
        self.gamma_at = plan.graph.offset(layer, "weight") if layer.affine else None
        self.beta_at = plan.graph.offset(layer, "bias") if layer.affine else None
        plan.normalisations.append(self)

    def plan_rooms(self, plan: Plan) -> None:
        self.tables = [plan.reserve("channels", batchnorm.FIELDS * self.channels) for _ in ORDERS]
        self.totals = [plan.reserve("totals", 2 * self.channels) for _ in ORDERS]
        self.sums = plan.reserve("sums", batchnorm.SUMS * self.channels)
        self.state = plan.reserve("state", 2 * self.channels)  # running mean, running variance
        if plan.gradients and self.y.needs_gradient:
            self._plan_parameter_gradients(plan)

    def _plan_parameter_gradients(self, plan: Plan) -> None:
        if self.gamma_at is None or self.beta_at is None:
            self.unused = plan.reserve("batch", 2 * self.channels)
            return
        index = np.concatenate([self.gamma_at + np.arange(self.channels), self.beta_at + np.arange(self.channels)])
        add = not plan.first_use(self.layer, "weight")
        if self.frozen:
            self.gradient_share = plan.partial(index, add)
        else:
            self.gradient_at = plan.reserve("batch", 2 * self.channels)
            plan.slot(self.gradient_at, index, add)

    # References. ------------------------------------------------------------------------------------------------------
    def _tables(self, plan: Plan, k: int, direction: int) -> dict[str, Operand]:
        return {f"table{j}": plan.panel("channels", min(j, k), direction, self.tables[min(j, k)]) for j in ORDERS}

    def _sizes(self, plan: Plan) -> dict[str, Operand]:
        return {
            "samples": Ref("samples"),
            "pixels": self.y.pixels,
            "channels": self.channels,
            "lanes": plan.lanes,
            "scratch": Ref("scratch"),
        }

    def _gamma(self, plan: Plan, k: int, direction: int) -> dict[str, Operand]:
        if self.gamma_at is None:
            return {"gamma0": Ref("ones", 0, 0), "gamma1": Ref("zeros", 0, 0)}
        first = plan.parameter(0, direction, self.gamma_at)
        return {"gamma0": first, "gamma1": plan.parameter(1, direction, self.gamma_at) if k > 0 else first}

    def _beta(self, plan: Plan, k: int, direction: int) -> Ref:
        if self.beta_at is None or k == 2:
            return Ref("zeros", 0, 0)
        return plan.parameter(k, direction, self.beta_at)

    def _all_tiles(self, plan: Plan) -> dict[str, Operand]:
        return {"sums": Ref("sums", 8 * self.sums, 0), "step": Ref("sums_step", 0, 0), "tiles": Ref("tile_count", 0, 0)}

    # Passes. ----------------------------------------------------------------------------------------------------------
    def prepare(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if self.frozen:
            code.once(
                batchnorm.frozen,
                order=k,
                **self._tables(plan, k, direction),
                channels=self.channels,
                mean=plan.batch("state", self.state),
                variance=plan.batch("state", self.state, self.channels),
                eps=float(self.layer.eps),
                **self._gamma(plan, k, direction),
            )

    def forward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        if k not in self.y.levels:
            return
        inputs, tables = plan.orders("x", self.x[0], k), self._tables(plan, k, direction)
        if not self.frozen:
            code.tile(
                batchnorm.moments,
                sums=Ref("sums", 8 * self.sums),
                order=k,
                **inputs,
                table0=tables["table0"],
                table1=tables["table1"],
                **self._sizes(plan),
            )
            code.once(
                batchnorm.statistics,
                order=k,
                **tables,
                **self._all_tiles(plan),
                channels=self.channels,
                eps=float(self.layer.eps),
                **self._gamma(plan, k, direction),
            )
        code.tile(
            batchnorm.normalise,
            y=plan.at(self.y.buffer, k),
            order=k,
            **inputs,
            **tables,
            beta=self._beta(plan, k, direction),
            pixels=self.y.pixels,
            channels=self.channels,
            lanes=plan.lanes,
        )

    def backward(self, plan: Plan, code: Code, k: int, direction: int) -> None:
        inputs, tables = plan.orders("x", self.x[0], k), self._tables(plan, k, direction)
        gradients = plan.gradients_of("g", self.g, k)
        code.tile(
            batchnorm.gradient_sums,
            sums=Ref("sums", 8 * self.sums),
            order=k,
            **inputs,
            **gradients,
            **tables,
            **self._sizes(plan),
        )
        if not self.frozen:
            at = self.unused if self.gamma_at is None else self.gradient_at
            code.once(
                batchnorm.gradient_statistics,
                order=k,
                **tables,
                **self._all_tiles(plan),
                channels=self.channels,
                d_gamma=plan.batch("batch", at),
                d_beta=plan.batch("batch", at, self.channels),
                **{f"totals{j}": plan.batch("totals", self.totals[min(j, k)], size=8) for j in ORDERS},
            )
        elif self.gamma_at is not None and code.wanted:
            code.tile(
                batchnorm.frozen_gradients,
                d_gamma=plan.share(self.gradient_share, code.slot),
                d_beta=plan.share(self.gradient_share, code.slot, self.channels),
                sums=Ref("sums", 8 * self.sums),
                table0=tables["table0"],
                channels=self.channels,
            )
        if self.h[0] is not None:
            code.tile(
                batchnorm.backward,
                h=plan.at(self.h[0], k),
                order=k,
                **inputs,
                **gradients,
                **tables,
                **self._sizes(plan),
            )
