# SPDX-License-Identifier: Apache-2.0
"""The XDP programs on the interfaces of this network namespace, by rtnetlink (rtnetlink(7)).

Reading takes no privilege. A program stays attached as long as anybody has its link.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Optional

_DONE, _ERROR = 3, 2  # nlmsg_type
_RTM_GETLINK = 18
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_INTERRUPTED = 0x10  # NLM_F_DUMP_INTR: an interface came or went meanwhile
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg
_ATTRIBUTE = struct.Struct("=HH")
_IFLA_XDP = 43
_PROGRAM_IDS = (4, 5, 6, 7)  # IFLA_XDP_PROG_ID, and those of each mode
_TYPE_MASK = 0x3FFF
_ROOM = 1 << 16
_TRIES = 8


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def _programs_of(link: bytes) -> Iterator[int]:
    for kind, value in _attributes(link[_LINK.size :]):
        if kind == _IFLA_XDP:
            for inner, number in _attributes(value):
                if inner in _PROGRAM_IDS and len(number) == 4:
                    yield struct.unpack("=I", number)[0]


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Type, flags and payload of each message."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, flags, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            return
        yield kind, flags, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def _list(kernel: socket.socket) -> Optional[set[int]]:
    """One list of the interfaces' programs; None: it may lack some."""
    found: set[int] = set()
    whole = True
    size = _HEADER.size + _LINK.size
    kernel.send(_HEADER.pack(size, _RTM_GETLINK, _DUMP, 1, 0) + _LINK.pack(0, 0, 0, 0, 0))
    while True:
        for kind, flags, payload in _messages(kernel.recv(_ROOM)):
            whole = whole and not flags & _INTERRUPTED
            if kind == _DONE:
                return found - {0} if whole else None
            if kind == _ERROR:
                number = -struct.unpack_from("=i", payload)[0]
                raise OSError(number, f"cannot list the interfaces: {os.strerror(number)}")
            found.update(_programs_of(payload))


def attached() -> set[int]:
    """The numbers of all attached programs. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        for _ in range(_TRIES):
            found = _list(kernel)
            if found is not None:
                return found
    raise OSError(errno.EAGAIN, "cannot list the interfaces: they change all the time")
