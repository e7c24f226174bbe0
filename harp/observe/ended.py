# SPDX-License-Identifier: Apache-2.0
"""The last counters of processes that have ended, for a reader that comes at intervals: a process
may end soon after its link has failed, and its file goes with it.

The reader keeps the file of each running process open, and reads it once more after the end. What
it keeps is bounded: `statfile.FILES_MOST` files of a user, and `OPEN_MOST` of all users. An open
file uses memory also after its removal. So a reader that pauses for SHOWN_S closes all of them
(`LastReadings.close`). It then misses the last counters of processes that end in the pause.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from harp.observe import foreign, statfile
from harp.observe.statfile import Budget, Process, StatError

SHOWN_S = 120.0  # after the end: eight scrapes at Prometheus' usual interval
OPEN_MOST = 512  # half of the usual limit of descriptors

_Key = tuple[str, int]


@dataclass
class _Ended:
    process: Process
    until: float


class LastReadings:
    """Thread: one at a time."""

    def __init__(self) -> None:
        self._open: dict[_Key, tuple[int, Process]] = {}
        self._ended: dict[_Key, _Ended] = {}

    def add(self, running: Sequence[Process]) -> list[Process]:
        """Takes the processes of a scan. Returns those that have ended in the last SHOWN_S, without
        gauges. The first time, a process has its last flows, too."""
        now = time.monotonic()
        here = {(one.id, one.uid) for one in running}
        budgets: dict[int, Budget] = {}
        for key in [key for key in self._ended if key in here or self._ended[key].until <= now]:
            del self._ended[key]
        for one in self._ended.values():
            one.process = replace(one.process, flows=[])
        for key in [key for key in self._open if key not in here]:
            fd, known = self._open.pop(key)
            last = _read(fd, known, budgets.setdefault(known.uid, Budget()))
            os.close(fd)
            if last and not last.alive and self._has_room(known.uid):
                self._ended[key] = _Ended(_without_gauges(last), now + SHOWN_S)
        self._open_files(running, budgets)
        return [one.process for one in self._ended.values()]

    def close(self) -> None:
        """Closes all files. The next reading opens those of the running processes again."""
        for fd, _ in self._open.values():
            os.close(fd)
        self._open.clear()

    def _has_room(self, uid: int) -> bool:
        return sum(user == uid for _, user in self._ended) < statfile.FILES_MOST

    def _open_files(self, running: Sequence[Process], budgets: dict[int, Budget]) -> None:
        of_user = Counter(uid for _, uid in self._open)
        for one in running:
            key = one.id, one.uid
            full = len(self._open) >= OPEN_MOST or of_user[one.uid] >= statfile.FILES_MOST
            if key in self._open or full:
                continue
            path = Path(one.path)
            try:
                fd = foreign.open_file(path, follow=path.is_relative_to("/proc"))
            except (OSError, foreign.ForeignError):
                continue
            found = _read(fd, one, budgets.setdefault(one.uid, Budget()))
            # Another file may have come into its place since the scan.
            if found and (found.process_id, found.started) == (one.process_id, one.started):
                self._open[key] = fd, one
                of_user[one.uid] += 1
            else:
                os.close(fd)


def _read(fd: int, known: Process, budget: Budget) -> Optional[Process]:
    with suppress(OSError, StatError, foreign.ForeignError):
        return replace(statfile.read_fd(Path(known.path), known.id, fd, budget), uid=known.uid)
    return None


def _without_gauges(process: Process) -> Process:
    kinds = {name: kind for name, kind in process.kinds.items() if kind != "gauge"}
    return replace(process, kinds=kinds)
