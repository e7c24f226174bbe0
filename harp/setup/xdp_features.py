# SPDX-License-Identifier: Apache-2.0
"""What the driver of an interface offers to XDP, from the kernel (Linux 6.3, the generic netlink
family "netdev", Documentation/netlink/specs/netdev.yaml). Changes nothing."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from harp.setup import host

_GENERIC, _CONTROLLER = 16, 16  # NETLINK_GENERIC, GENL_ID_CTRL
_HEADER = struct.Struct("=IHHIIBBH")  # nlmsghdr and genlmsghdr
_ATTRIBUTE = struct.Struct("=HH")
_REQUEST, _ERROR = 1, 2  # NLM_F_REQUEST, NLMSG_ERROR
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_GET_DEVICE, _IFINDEX, _FEATURES = 1, 1, 3

_BASIC, _REDIRECT, _ZERO_COPY, _SEVERAL_BUFFERS = 1, 2, 8, 32


@dataclass(frozen=True)
class Features:
    """native: the driver runs the program. zero_copy: it has zero-copy AF_XDP sockets.
    several_buffers: it gives frames of several buffers to a program."""

    native: bool
    zero_copy: bool
    several_buffers: bool


def _attribute(kind: int, data: bytes) -> bytes:
    whole = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), kind) + data
    return whole + bytes(-len(whole) % 4)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]


def _ask(family: int, command: int, attribute: bytes) -> dict[int, bytes]:
    """The attributes of the kernel's answer; none after an error."""
    length = _HEADER.size + len(attribute)
    request = _HEADER.pack(length, family, _REQUEST, 1, 0, command, 1, 0) + attribute
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _GENERIC) as kernel:
        kernel.send(request)
        answer = kernel.recv(65536)
    if len(answer) < _HEADER.size or _HEADER.unpack_from(answer)[1] == _ERROR:
        return {}
    return dict(_attributes(answer[_HEADER.size :]))


def features(interface: str) -> Optional[Features]:
    """None if the kernel does not tell. Raises OSError, also if there is no such interface."""
    found = _ask(_CONTROLLER, _GET_FAMILY, _attribute(_FAMILY_NAME, b"netdev\0")).get(_FAMILY_ID)
    if not found:
        return None
    index = struct.pack("=I", socket.if_nametoindex(interface))
    told = _ask(int.from_bytes(found, "little"), _GET_DEVICE, _attribute(_IFINDEX, index))
    if _FEATURES not in told:
        return None
    bits = int.from_bytes(told[_FEATURES], "little")
    return Features(
        native=bits & (_BASIC | _REDIRECT) == _BASIC | _REDIRECT,
        zero_copy=bool(bits & _ZERO_COPY),
        several_buffers=bool(bits & _SEVERAL_BUFFERS),
    )


def attached(interface: str) -> Optional[str]:
    """The XDP program of an interface as text, such as "harp (id 5)"; None: it has none. Raises
    HostError."""
    (shown,) = json.loads(host.ip("-j", "-d", "link", "show", "dev", interface))
    program = shown.get("xdp", {}).get("prog")
    if not program:
        return None
    return f"{program.get('name', 'unnamed')} (id {program.get('id', '?')})"
