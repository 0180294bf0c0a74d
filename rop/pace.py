"""Whether threads pay just now. Threads meet many times in a pass; where another program has one of the cores they wait
for each other's turn, and short work is many times faster on a single one. Results do not depend on it, only time does.
"""

from __future__ import annotations

FIRST = 4               # calls with threads before the other way is tried; the first of them are slow for other reasons
TRY_EVERY = 50          # calls after which the slower way is tried again
NEW = 0.25              # weight of a new measurement in the average of its way


class Pace:
    """Chooses between running in parallel and alone by what the last calls took.

    >>> pace = Pace()
    >>> for parallel, seconds in ((True, 9.0), (True, 3e-3), (True, 3e-3), (True, 3e-3), (False, 1e-3)):
    ...     assert pace.parallel() == parallel
    ...     pace.measured(parallel, seconds)
    >>> pace.parallel()
    False
    """

    def __init__(self) -> None:
        self._together = self._alone = 0.0              # average seconds of a call
        self._calls = 0
        self._trial = False

    def parallel(self) -> bool:
        """Whether the next call should use threads."""
        self._calls += 1
        better = self._together <= self._alone
        if self._calls <= FIRST + 1:
            self._trial = True
            return self._calls <= FIRST
        self._trial = self._calls % TRY_EVERY == 0
        return better != self._trial

    def measured(self, parallel: bool, seconds: float) -> None:
        """What the call took. What is known of a way that was not in use is out of date: the trial alone counts."""
        if parallel:
            self._together += (1.0 if self._trial else NEW) * (seconds - self._together)
        else:
            self._alone += (1.0 if self._trial else NEW) * (seconds - self._alone)
