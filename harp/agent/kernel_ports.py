# SPDX-License-Identifier: Apache-2.0
"""The local ports that the kernel gives to any program.

A job must have none of them: it would see the frames of that program's connection, and reset it.
An operator may change them at any time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
RESERVED = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
_LONGEST = 256 * 1024  # the list of every other port, 32,768 numbers with their commas, is shorter


def _reserved() -> set[int]:
    # One call: the kernel cuts the list to the size of the first one, and has no second part.
    file = os.open(RESERVED, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(file, _LONGEST).decode()
    finally:
        os.close(file)
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


def given_away(first: int, last: int) -> Optional[int]:
    """The first port of the range that the kernel may give to a program; None: it gives none."""
    low, high = map(int, RANGE.read_text().split())
    overlap = range(max(first, low), min(last, high) + 1)
    if not overlap:
        return None
    reserved = _reserved()
    return next((port for port in overlap if port not in reserved), None)


def remedy(port: int, first: int, last: int) -> str:
    """What to do about a port of the agent's range that the kernel gives away."""
    low, high = map(int, RANGE.read_text().split())
    return (
        f"the kernel gives port {port} to any program (ip_local_port_range is {low}-{high}); "
        "choose other --ports, or reserve these: sysctl "
        f"net.ipv4.ip_local_reserved_ports={first}-{last}"
    )
