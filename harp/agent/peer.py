# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a UNIX socket, as the kernel noted it when that process connected
(unix(7))."""

from __future__ import annotations

import ctypes
import socket
from dataclasses import dataclass

from harp import credentials

_PEERGROUPS = 59  # SO_PEERGROUPS
_MOST_GROUPS = 65536  # NGROUPS_MAX
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Peer:
    """A process. `gids`: its own group first, and then its further ones."""

    pid: int
    uid: int
    gids: tuple[int, ...]

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        """The peer of a connection. Raises OSError."""
        pid, uid, gid = credentials.of_peer(connection)
        return cls(pid, uid, (gid, *_groups(connection)))


def _groups(connection: socket.socket) -> tuple[int, ...]:
    """None on a kernel that does not tell them: the process's own group then has to do. Python's
    getsockopt has room for 256 only."""
    room = (ctypes.c_uint32 * _MOST_GROUPS)()
    length = ctypes.c_uint32(ctypes.sizeof(room))
    number = connection.fileno()
    if _LIBC.getsockopt(number, socket.SOL_SOCKET, _PEERGROUPS, room, ctypes.byref(length)):
        return ()
    return tuple(room[: length.value // ctypes.sizeof(ctypes.c_uint32)])
