# SPDX-License-Identifier: Apache-2.0
"""The agent as a service of systemd: the socket that systemd passes, and what it is told."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Optional

_FIRST = 3  # SD_LISTEN_FDS_START


class ActivationError(RuntimeError):
    """systemd has passed something that the agent cannot listen at. The text has the remedy."""


def passed_socket() -> Optional[socket.socket]:
    """The listening socket that systemd passes (sd_listen_fds(3)); None: it has passed none. Raises
    ActivationError. Takes it only once: programs that the agent runs do not get it."""
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()):
        return None
    if count != "1":
        raise ActivationError(
            f"systemd has passed {count or 'no'} sockets; harp-agent.socket needs one "
            "ListenSequentialPacket= line"
        )
    try:
        found = socket.socket(fileno=_FIRST)
    except OSError as failed:
        raise ActivationError(f"descriptor {_FIRST} of systemd: {failed.strerror}") from None
    found.set_inheritable(False)
    if found.family != socket.AF_UNIX or found.type != socket.SOCK_SEQPACKET:
        found.detach()
        raise ActivationError(
            "systemd has passed a socket of another type; harp-agent.socket needs "
            "ListenSequentialPacket= in place of ListenStream="
        )
    return found


def notify(state: str) -> None:
    """Tells systemd the state, such as READY=1 (sd_notify(3)). Does nothing without systemd."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.sendto(state.encode(), address)
