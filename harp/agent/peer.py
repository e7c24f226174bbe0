# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a UNIX socket, as the kernel noted it when that process connected
(unix(7))."""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("=iII")
_PEERGROUPS = 59  # SO_PEERGROUPS
_USUAL_GROUPS = 256
_MOST_GROUPS = 65536  # NGROUPS_MAX


@dataclass(frozen=True)
class Peer:
    """A process. `gids`: its own group first, and then its further ones."""

    pid: int
    uid: int
    gids: tuple[int, ...]

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        """The peer of a connection. Raises OSError."""
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(data)
        return cls(pid, uid, (gid, *_groups(connection)))


def _groups(connection: socket.socket) -> tuple[int, ...]:
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _PEERGROUPS, 4 * _USUAL_GROUPS)
    except OSError as failed:
        if failed.errno != errno.ERANGE:
            raise
        data = connection.getsockopt(socket.SOL_SOCKET, _PEERGROUPS, 4 * _MOST_GROUPS)
    return struct.unpack(f"={len(data) // 4}I", data)
