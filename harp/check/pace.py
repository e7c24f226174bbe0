# SPDX-License-Identifier: Apache-2.0
"""How long each slot of a phase may measure, so that the phase ends in time."""

from __future__ import annotations

import time
from typing import Callable

LONGEST_S, SHORTEST_S = 0.2, 0.02  # a slot


class Pace:
    """The pace of `slots` slots that should take `total` seconds together. A busy host needs more
    time between the measurements than a quiet one; later slots are shorter then."""

    def __init__(
        self, total: float, slots: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._left, self._clock = total, slots, clock
        self._begun = clock()
        self._done = 0
        self._given = 0.0

    def next(self) -> float:
        """The seconds for the next slot."""
        passed = self._clock() - self._begun
        gap = (passed - self._given) / self._done if self._done else 0.0
        share = (self._total - passed) / max(1, self._left) - gap
        seconds = min(LONGEST_S, max(SHORTEST_S, share))
        self._left -= 1
        self._done += 1
        self._given += seconds
        return seconds
