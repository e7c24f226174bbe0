# SPDX-License-Identifier: Apache-2.0
"""A client of the agent that speaks its protocol itself, also wrongly."""

from __future__ import annotations

import array
import errno
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from harp.agent import reply

SIZE = 4096  # more than a reply
DESCRIPTORS = 80
_PORTS = struct.Struct("=HHH")
_PORTS_AT = 812  # of ports_first in struct harp_agent_reply


@contextmanager
def user(uid: int) -> Iterator[None]:
    """Runs a block as another user: what connects in it has this user's credentials."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@dataclass
class Opened:
    """A reply with descriptors. `first`, `last`: granted ports. `port`: the first listener's."""

    fds: list[int]
    first: int
    last: int
    port: int

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


class Refused(Exception):
    """A reply that fails."""

    def __init__(self, number: int, text: str):
        super().__init__(f"{errno.errorcode.get(number, number)}: {text}")
        self.number = number
        self.text = text


class Client:
    """A connection to an agent's socket."""

    def __init__(self, path: Path, uid: int = 0):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with user(uid):
            self.connection.connect(str(path))
        self.connection.settimeout(20)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def send(self, members: Any) -> None:
        data = members if isinstance(members, bytes) else json.dumps(members).encode()
        self.connection.send(data)

    def receive(self) -> Opened:
        """The next reply. Raises Refused for one that fails, and EOFError at the end."""
        room = socket.CMSG_SPACE(DESCRIPTORS * 4)
        data, control, _, _ = self.connection.recvmsg(SIZE, room)
        if not data:
            raise EOFError
        refused = reply.read_error(data)
        if refused:
            raise Refused(*refused)
        fds = array.array("i")
        for _, _, rights in control:
            fds.frombytes(rights)
        ports = _PORTS.unpack_from(data, _PORTS_AT) if len(data) > _PORTS_AT else (0, 0, 0)
        return Opened(list(fds), *ports)

    def ask(self, members: Any) -> Opened:
        self.send(members)
        return self.receive()

    def open(self, interface: str = "eth0", **changes: Any) -> Opened:
        return self.ask(opening(interface, **changes))

    def listen(self, opened: Opened, count: int = 16, interface: str = "eth0") -> Opened:
        return self.ask(listening(opened, count, interface))


def opening(interface: str = "eth0", **changes: Any) -> dict[str, Any]:
    """The members of a request that opens a packet device."""
    members = {
        "version": 1, "op": "open", "device": f"packet:{interface}", "queues": 1,
        "address": "kernel", "mac": "", "mtu": 0, "ports": [0, 0],
    }  # fmt: skip
    return {**members, **changes}


def listening(
    opened: Opened, count: int = 16, interface: str = "eth0", **changes: Any
) -> dict[str, Any]:
    """The members of a request for listeners on the first ports of a grant."""
    members = {
        "version": 1, "op": "listen", "device": f"packet:{interface}",
        "grant": [opened.first, opened.last], "first": opened.first, "count": count,
    }  # fmt: skip
    return {**members, **changes}


def refusal(path: Path, members: Any, uid: int = 0) -> Refused:
    """The agent's refusal of a request."""
    with Client(path, uid) as client:
        try:
            opened = client.ask(members)
        except Refused as refused:
            return refused
    opened.close()
    raise AssertionError(f"{members}: not refused")


def inode(fd: int) -> int:
    return os.fstat(fd).st_ino


def packet_inodes(pid: Optional[int] = None) -> set[int]:
    """The packet sockets of a process's network namespace."""
    text = Path(f"/proc/{pid or 'self'}/net/packet").read_text()
    return {int(line.split()[8]) for line in text.splitlines()[1:]}
