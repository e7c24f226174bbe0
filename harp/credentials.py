# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a UNIX socket, as the kernel noted it when that process connected, or
began to listen (unix(7))."""

from __future__ import annotations

import socket
import struct

_UCRED = struct.Struct("=iII")  # struct ucred


def of_peer(connection: socket.socket) -> tuple[int, int, int]:
    """The peer's process, user and group. Raises OSError."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(data)
    return pid, uid, gid
