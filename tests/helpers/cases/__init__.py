"""One case per layer and per loss says how to draw it and what must be refused; there is a file per family.

The record of a class (rop/layers/record.py) names its case: by default the class's name in lower case, in the file of
its family. A class without a case fails the suite, and so does a case without inputs that must be refused. The checks
themselves are written once, in tests/layers, tests/check and tests/test_errors.py.
"""

from __future__ import annotations

from rop.layers.record import LAYERS, LOSSES, RECORDS
from tests.helpers.cases.common import Case, LossCase, Refused, made
from tests.helpers.cases.elementwise import bell, wave

__all__ = ["CASES", "LOSS_CASES", "Case", "LossCase", "Refused", "bell", "made", "wave"]

CASES: list[Case] = [RECORDS[kind].find("case") for kind in LAYERS.values()]
LOSS_CASES: list[LossCase] = [RECORDS[kind].find("case") for kind in LOSSES.values()]
