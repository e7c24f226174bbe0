# SPDX-License-Identifier: Apache-2.0
"""Unix sockets of other processes: a connection that is cut while both of its ends live."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

PIDFD_GETFD = 438  # of every architecture; neither Python nor an old C library has it
CONNECTED = "03"  # SS_CONNECTED, in /proc/net/unix


def _connections(path: Path) -> Iterator[str]:
    """The inodes of what a listener at this path has accepted: such sockets bear its name."""
    for line in Path("/proc/net/unix").read_text().splitlines():
        words = line.split()
        if words[5] == CONNECTED and words[-1] == str(path):
            yield words[6]


def _number_of(inodes: set[str], entry: Path) -> Optional[int]:
    """The descriptor's number, if it is one of these sockets'."""
    try:
        return int(entry.name) if os.readlink(entry).strip("socket:[]") in inodes else None
    except FileNotFoundError:  # closed meanwhile
        return None


def _duplicate(pid: int, number: int) -> socket.socket:
    process = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        found = libc.syscall(PIDFD_GETFD, process, number, 0)
        if found < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        return socket.socket(fileno=found)
    finally:
        os.close(process)


def cut(pid: int, path: Path) -> None:
    """Shuts down every connection that a process has accepted at a path. LookupError: there is
    none; OSError: this user may not trace the process."""
    inodes = set(_connections(path))
    entries = Path(f"/proc/{pid}/fd").iterdir()
    numbers = [number for entry in entries if (number := _number_of(inodes, entry)) is not None]
    if not numbers:
        raise LookupError(f"process {pid} has accepted nobody at {path}")
    for number in numbers:
        with _duplicate(pid, number) as connection:
            connection.shutdown(socket.SHUT_RDWR)
