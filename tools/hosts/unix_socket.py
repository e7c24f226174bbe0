# SPDX-License-Identifier: Apache-2.0
"""Cuts the Unix socket connection of another process while both ends live."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

PIDFD_GETFD = 438  # on every architecture; Python and old C libraries lack the call
CONNECTED = "03"  # SS_CONNECTED, in /proc/net/unix


def _connections(path: Path) -> Iterator[str]:
    """The inodes of the connections that the listener at this path has accepted. Accepted sockets
    have the listener's name."""
    for line in Path("/proc/net/unix").read_text().splitlines():
        fields = line.split()
        if fields[5] == CONNECTED and fields[-1] == str(path):
            yield fields[6]


def _number_of(inodes: set[str], entry: Path) -> Optional[int]:
    """The number of the descriptor if it is one of these sockets, else None."""
    try:
        return int(entry.name) if os.readlink(entry).strip("socket:[]") in inodes else None
    except FileNotFoundError:  # closed since the listing
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
    """Shuts down every connection that a process has accepted at a path. Raises LookupError if
    there is none, OSError if this user may not trace the process."""
    inodes = set(_connections(path))
    entries = Path(f"/proc/{pid}/fd").iterdir()
    numbers = [number for entry in entries if (number := _number_of(inodes, entry)) is not None]
    if not numbers:
        raise LookupError(f"process {pid} has accepted no connection at {path}")
    for number in numbers:
        with _duplicate(pid, number) as connection:
            connection.shutdown(socket.SHUT_RDWR)
