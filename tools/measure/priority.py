# SPDX-License-Identifier: Apache-2.0
"""Scheduling priorities for measurements on a machine with other work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NICE_FIRST = -18


@contextmanager
def going_first(wanted: bool = True) -> Iterator[None]:
    """Gives programs started in the block priority over most other work. Needs root."""
    if not wanted:
        yield
        return
    usual, group = os.getpriority(os.PRIO_PROCESS, 0), Path("/proc/self/autogroup")
    # The kernel's autogroups weigh sessions instead of processes: "/autogroup-7 nice 0".
    weight = group.read_text().split()[-1] if group.exists() else None
    os.setpriority(os.PRIO_PROCESS, 0, NICE_FIRST)
    try:
        if weight is not None:
            group.write_text(str(NICE_FIRST))
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)
        if weight is not None:
            group.write_text(weight)


@contextmanager
def precedence() -> Iterator[None]:
    """Gives this thread real-time priority, so that a busy machine does not delay phase ends."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
