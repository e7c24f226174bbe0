# SPDX-License-Identifier: Apache-2.0
"""Many hosts on one link around a stack: frames by hand, a few microseconds each."""

from __future__ import annotations

import struct
from typing import Any

from harp.testing._flow import FlowStack
from harp.testing.frames import ACK, ETHERTYPE_ARP, SYN, strip_ethernet

OWN = "10.1.255.1"
OWN_MAC = bytes.fromhex("0200000000ff")
PORT = 80
_OWN = bytes(map(int, OWN.split(".")))


def make_small_stack(**config: Any) -> FlowStack:
    """A stack on the link; link=0: without one."""
    usual: dict[str, Any] = {"link": 1, "max_connections": 64, "packets": 1024}
    stack = FlowStack(address=OWN, mac=OWN_MAC.hex(":"), prefix=16, **{**usual, **config})
    stack.advance(10**12)
    return stack


def address(number: int) -> bytes:
    return bytes((10, 1, number >> 8, number & 255))


def dotted(number: int) -> str:
    return ".".join(map(str, address(number)))


def mac(number: int) -> bytes:
    return struct.pack("!HI", 0x0200, 1 + number)


def number_of(wanted: bytes) -> int:
    return wanted[2] << 8 | wanted[3]


def arp(number: int, operation: int) -> bytes:
    """A question for the stack's address, or an answer to it, from a host."""
    to = OWN_MAC if operation == 2 else b"\xff" * 6
    return (to + mac(number) + struct.pack("!HHHBBH", ETHERTYPE_ARP, 1, 0x0800, 6, 4, operation)
            + mac(number) + address(number) + OWN_MAC + _OWN)  # fmt: skip


def segment(number: int, sport: int, flags: int, seq: int, ack: int, data: bytes = b"",
            dport: int = PORT) -> bytes:  # fmt: skip
    """Its TCP checksum is left to be vouched for; the IPv4 header has one."""
    length = 40 + len(data)
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, 0, 0x4000, 64, 6, 0, address(number), _OWN)
    sum_ = sum(struct.unpack("!10H", head)) % 0xFFFF
    head = head[:10] + struct.pack("!H", 0xFFFF - sum_) + head[12:]
    tcp = struct.pack("!HHIIBBHHH", sport, dport, seq, ack, 0x50, flags, 60000, 0, 0)
    return OWN_MAC + mac(number) + b"\x08\x00" + head + tcp + data


def tell(stack: FlowStack, *frames: bytes) -> None:
    for frame in frames:
        stack.receive(frame, b"", 0, True)
    stack.flush()


def transmitted(stack: FlowStack) -> tuple[list[int], list[tuple[int, bytes]]]:
    """The frames that the stack has sent: the hosts of its ARP requests, and its segments, each
    with the number of the host that it goes to."""
    asked, segments = [], []
    for frame in stack.take():
        kind, rest = strip_ethernet(frame.data)
        if kind == ETHERTYPE_ARP:
            if rest[7] == 1:
                asked.append(number_of(rest[24:28]))
        else:
            segments.append((struct.unpack("!HI", frame.data[:6])[1] - 1, rest[20:]))
    return asked, segments


def open_from(stack: FlowStack, number: int, sport: int = 1000, dport: int = PORT) -> int:
    """A host's handshake to the end, with ARP: the stack's first sequence number."""
    tell(stack, arp(number, 1), segment(number, sport, SYN, 0, 0, dport=dport))
    asked, segments = transmitted(stack)
    if asked:
        assert asked == [number]
        tell(stack, arp(number, 2))
        _, segments = transmitted(stack)
    ((there, tcp),) = segments
    assert (there, tcp[13]) == (number, SYN | ACK)
    first = struct.unpack_from("!I", tcp, 4)[0]
    tell(stack, segment(number, sport, ACK, 1, (first + 1) & 0xFFFFFFFF, dport=dport))
    return int(first)
