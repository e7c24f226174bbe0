# SPDX-License-Identifier: Apache-2.0
"""Records the cores' busy time, for runs whose begin and end are known only later."""

from __future__ import annotations

import threading
import time

from tools.measure.iperf import busy_seconds
from tools.measure.stats import increase

SAMPLE_S = 0.02


class Meter:
    """Samples the machine until stop. load: the fraction of the cores' time to subtract."""

    def __init__(self, load: float) -> None:
        self._load = load
        self._samples: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        over = False
        while not over:
            over = self._over.wait(SAMPLE_S)
            busy, existed = busy_seconds()
            self._samples.append((time.monotonic(), busy - self._load * existed))

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def busy(self, begin: float, end: float) -> float:
        """The busy time between two times of CLOCK_MONOTONIC without the load, in seconds."""
        return max(0.0, increase(self._samples, begin, end))
