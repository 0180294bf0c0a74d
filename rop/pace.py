"""Whether threads pay just now. Threads meet many times in a pass; where another program has one of the cores they wait
for each other's turn, and short work is many times faster on a single one. Results do not depend on it, only time does.
"""

from __future__ import annotations

from collections import deque

REMEMBERED = 3          # measurements of each way; the best of them counts
TRY_EVERY = 50          # calls after which the slower way is tried again


class Pace:
    """Chooses between running in parallel and alone by what the last calls took.

    >>> pace = Pace()
    >>> for parallel, seconds in ((True, 3e-3), (True, 3e-3), (True, 3e-3), (False, 1e-3)):
    ...     assert pace.parallel() == parallel
    ...     pace.measured(parallel, seconds)
    >>> pace.parallel()
    False
    """

    def __init__(self) -> None:
        self._seconds = {way: deque[float](maxlen=REMEMBERED) for way in (True, False)}
        self._calls = 0

    def parallel(self) -> bool:
        """Whether the next call should use threads."""
        together, alone = self._seconds[True], self._seconds[False]
        if len(together) < REMEMBERED or not alone:
            return len(together) < REMEMBERED           # the first calls are slow for other reasons too
        self._calls += 1
        better = min(together) <= min(alone)
        return better if self._calls % TRY_EVERY else not better

    def measured(self, parallel: bool, seconds: float) -> None:
        self._seconds[parallel].append(seconds)
