"""ReLUs that are fused into the operation before them: its value is rectified where it is made, in the same rows."""

from __future__ import annotations

from rop.lowering.plan import Operation, Plan
from rop.lowering.values import Buffer


class Rectifiable(Operation):
    """An operation that a ReLU behind it can be fused into.

    What is stored of y is then the ReLU's value. Where its order 0 is ≤ 0 the ReLU is off, so that orders 1 and 2 and
    all orders of the gradient are 0 there, too. The gradient is masked where it is made if a product alone uses y;
    otherwise in its own rows, and in other ones if they are the gradient of another value as well.
    """

    relu = False  # whether a ReLU is fused into this operation
    delta: Buffer  # the gradient of y before the fused ReLU; g itself unless it has to be kept

    def rectify(self) -> None:
        """Fuses the ReLU that alone uses y into this operation."""
        self.relu = self.y.flow.rectified = True

    @property
    def keeps_output(self) -> bool:  # type: ignore[override]
        """The ReLU is off where y is not positive."""
        return self.relu

    def gradients_read(self) -> list[Buffer]:
        return [self.g, self.delta]

    @property
    def masks_gradient(self) -> bool:
        """Whether δ has to be made from g by masking it, before it is used."""
        return self.relu and not self.y.flow.masked_by_user

    def plan_gradients(self, plan: Plan) -> None:
        keeps_g = self.masks_gradient and self.y.flow.is_shared
        self.delta = plan.rows_like(self.y) if keeps_g else self.g
        super().plan_gradients(plan)
