# SPDX-License-Identifier: Apache-2.0
"""Log lines about clients: a bounded number for each user, so that no client fills the log."""

from __future__ import annotations

import logging
import time
from typing import Callable

LOG = logging.getLogger("harp.agent")
MOST = 16  # lines of a user
SPAN_S = 5.0  # in this time
USERS = 1024  # more share one count


class Complaints:
    """Warnings about clients. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._began = clock()
        self._said: dict[int, int] = {}

    def add(self, uid: int, line: str) -> None:
        """Logs a line about a client of this user, or counts it if there were too many."""
        if self._clock() - self._began >= SPAN_S:
            self.flush()
        key = uid if uid in self._said or len(self._said) < USERS else -1
        self._said[key] = self._said.get(key, 0) + 1
        if self._said[key] <= MOST:
            LOG.warning("%s", line)

    def flush(self) -> None:
        """Logs how many lines were left out, and begins to count again."""
        for uid, count in self._said.items():
            if count > MOST:
                who = f"uid {uid}" if uid >= 0 else "further users"
                LOG.warning("%d more lines about clients of %s", count - MOST, who)
        self._said.clear()
        self._began = self._clock()
