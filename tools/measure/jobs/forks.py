# SPDX-License-Identifier: Apache-2.0
"""Runs in forks of the ranks of a job, see programs/forks.py."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Optional

from tools.hosts.ranks import START_S, TooLate, wait_until
from tools.hosts.torch_job import TorchRank
from tools.measure.fault_trials import END_S, HANG, Misbehaved
from tools.measure.jobs import hosts as lab_hosts


class Forks:
    """One fork of each rank. Its records are those that the rank has printed since it began."""

    def __init__(self, ranks: Sequence[TorchRank], *args: object) -> None:
        """args: passed to the forks after the rank's number and the number of ranks."""
        self.ranks = ranks
        self._begins = [len(rank.printed) for rank in ranks]
        for number, rank in enumerate(ranks):
            assert rank.process.stdin
            print(number, len(ranks), *args, file=rank.process.stdin, flush=True)

    def find(self, number: int, key: str) -> Optional[dict[str, Any]]:
        """The first record of a rank with this key."""
        records = lab_hosts.told(self.ranks[number], self._begins[number])
        return next((one for one in records if key in one), None)

    def wait_for(self, number: int, key: str, seconds: float) -> dict[str, Any]:
        """Waits for `find`. Raises Misbehaved for a hang after `seconds`."""
        why = f"rank {number} does not print its {key!r}"
        try:
            found: dict[str, Any] = wait_until(
                lambda: self.find(number, key), seconds, why, [self.ranks[number]]
            )
        except TooLate as late:
            raise Misbehaved(HANG, str(late)) from None
        return found

    def send(self, number: int, what: int) -> float:
        """Sends a signal to a rank. Returns the time."""
        pid = self.wait_for(number, "pid", START_S)["pid"]
        moment = time.monotonic()
        os.kill(pid, what)
        return moment

    def clear(self) -> None:
        """Kills what is left, so that the next forks can begin."""
        for number in range(len(self.ranks)):
            if not self.find(number, "status"):
                with suppress(ProcessLookupError):
                    self.send(number, signal.SIGKILL)
                self.wait_for(number, "status", END_S)
