# SPDX-License-Identifier: Apache-2.0
"""The check of `harp doctor` for running processes that a CPU quota stops.

A quota stops a process for less than 0.1 s at a time, so the counter poll_stalls does not show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Optional

from harp.cli.findings import Finding, note
from harp.setup import sysfs

OFTEN = 0.05  # of the periods
_MOUNT = "sys/fs/cgroup"


def _groups(pid: int) -> Iterator[PurePosixPath]:
    """The folders, below the root, of a process's CPU group and of its ancestors. A line of
    /proc/PID/cgroup is "0::PATH" for version 2, and "NUMBER:CONTROLLERS:PATH" for version 1."""
    for line in sysfs.text(sysfs.at(f"proc/{pid}/cgroup")).splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if ".." in path or (controllers and "cpu" not in controllers.split(",")):
            continue
        group = PurePosixPath(_MOUNT, "cpu" if controllers else "", path.lstrip("/"))
        yield from (one for one in (group, *group.parents) if one.is_relative_to(_MOUNT))


def _throttled(group: PurePosixPath) -> tuple[int, int]:
    """In how many periods the group's quota stopped its processes, and how many there were."""
    rows = (line.split() for line in sysfs.text(sysfs.at(f"{group}/cpu.stat")).splitlines())
    found = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    return found.get("nr_throttled", 0), found.get("nr_periods", 0)


def _tightest(pid: int) -> Optional[PurePosixPath]:
    """The group whose quota stops the process often; None: none does."""
    shares = {}
    for group in _groups(pid):
        stopped, periods = _throttled(group)
        if periods and stopped >= OFTEN * periods:
            shares[group] = stopped / periods
    return max(shares, key=lambda group: shares[group]) if shares else None


def check(pids: Iterable[int]) -> Iterator[Finding]:
    """A note for each group whose quota often stops some of these processes."""
    found: dict[PurePosixPath, list[int]] = {}
    for pid in pids:
        group = _tightest(pid)
        if group:
            found.setdefault(group, []).append(pid)
    for group, stopped in found.items():
        times, periods = _throttled(group)
        named = ", ".join(f"process {pid}" for pid in stopped)
        yield note(
            "CPU quota",
            f"{named}: throttled in {times} of {periods} periods of /{group}; raise its quota "
            "(cpu.max, or the pod's CPU limit)",
        )
