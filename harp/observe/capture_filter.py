# SPDX-License-Identifier: Apache-2.0
"""Which frames a capture takes, as a classic BPF program that the kernel runs."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from harp.observe.packet_ring import Instruction

PROGRAM_MOST = 4096  # instructions that the kernel takes

# Instructions: load from the packet, compare, jump, return.
_LDH, _LDB, _LDW, _LDX_IHL, _LDH_X = 0x28, 0x30, 0x20, 0xB1, 0x48
_JA, _JEQ, _JSET, _RET = 0x05, 0x15, 0x45, 0x06
_REJECT: Instruction = (_RET, 0, 0, 0)
NOTHING = [_REJECT]

_TYPE = ((_LDH, 0, 0, 12),)
_PROTOCOL = ((_LDB, 0, 0, 23),)
_FRAGMENT = ((_LDH, 0, 0, 20),)
_SOURCE, _DESTINATION = ((_LDW, 0, 0, 26),), ((_LDW, 0, 0, 30),)
_SOURCE_PORT = ((_LDX_IHL, 0, 0, 14), (_LDH_X, 0, 0, 14))
_DESTINATION_PORT = ((_LDX_IHL, 0, 0, 14), (_LDH_X, 0, 0, 16))
_PACKET_TYPE = ((_LDW, 0, 0, 0xFFFFF000 + 4),)  # SKF_AD_OFF + SKF_AD_PKTTYPE
_IPV4, _ARP, _TCP, _OUTGOING = 0x0800, 0x0806, 6, 4

Load = tuple[Instruction, ...]
Test = tuple[Load, Sequence[int]]  # what is loaded is one of these


@dataclass(frozen=True)
class Connection:
    """A flow's ends: its own port, the peer's address and port."""

    port: int
    peer: str
    peer_port: int


@dataclass(frozen=True)
class Target:
    """Whose frames: all of `address` on `interface`, or only those of its TCP `ports`, where
    the kernel has the address as well. Of these, as far as given: frames between it and one of
    `peers`, with one of `either_ports` at one end, of one of `connections`, and sent by this
    host (`direction` "out") or not ("in")."""

    interface: str
    address: str
    ports: Optional[frozenset[int]]
    peers: frozenset[str] = frozenset()
    either_ports: frozenset[int] = frozenset()
    connections: Optional[frozenset[Connection]] = None
    direction: Optional[str] = None


def _number(address: str) -> int:
    return int(struct.unpack("!I", socket.inet_aton(address))[0])


class _Program:
    """Conditions that must all hold, one after the other."""

    def __init__(self) -> None:
        self.code: list[Instruction] = []

    def _jump(self) -> int:
        """A jump whose way is not known yet."""
        self.code.append((_JA, 0, 0, 0))
        return len(self.code) - 1

    def _land(self, jumps: Iterable[int]) -> None:
        """These jumps lead here."""
        for at in jumps:
            self.code[at] = (_JA, 0, 0, len(self.code) - at - 1)

    def any_of(self, *alternatives: Sequence[Test]) -> None:
        """Each alternative is a list of tests that must all hold."""
        done = []
        for tests in alternatives:
            failed = []
            for load, values in tests:
                self.code += load
                matched = []
                for value in values:
                    self.code.append((_JEQ, 0, 1, value))
                    matched.append(self._jump())
                failed.append(self._jump())
                self._land(matched)
            done.append(self._jump())
            self._land(failed)
        self.code.append(_REJECT)
        self._land(done)

    def none_of(self, load: Load, comparison: int, value: int) -> None:
        self.code += [*load, (comparison, 0, 1, value), _REJECT]


def _connection(one: Connection) -> list[Sequence[Test]]:
    """Both ways."""
    peer = [_number(one.peer)]
    return [
        [(_SOURCE, peer), (_SOURCE_PORT, [one.peer_port]), (_DESTINATION_PORT, [one.port])],
        [(_DESTINATION, peer), (_DESTINATION_PORT, [one.peer_port]), (_SOURCE_PORT, [one.port])],
    ]


def _whose(program: _Program, wanted: Target) -> None:
    """The process's own."""
    address = [_number(wanted.address)]
    if wanted.ports is not None:
        ports = sorted(wanted.ports)
        program.any_of(
            [(_SOURCE, address), (_SOURCE_PORT, ports)],
            [(_DESTINATION, address), (_DESTINATION_PORT, ports)],
        )
        return
    addressed: list[Sequence[Test]] = [
        [(_TYPE, [_IPV4]), (_SOURCE, address)],
        [(_TYPE, [_IPV4]), (_DESTINATION, address)],
    ]
    narrowed = wanted.peers or wanted.either_ports or wanted.connections is not None
    program.any_of(*addressed, *([] if narrowed else [[(_TYPE, [_ARP])]]))


def program(wanted: Target, snaplen: int) -> list[Instruction]:
    """The filter; it keeps the first `snaplen` bytes of a frame. Raises ValueError if the
    kernel would not take one so long."""
    made = _Program()
    if wanted.direction == "out":
        made.any_of([(_PACKET_TYPE, [_OUTGOING])])
    elif wanted.direction == "in":
        made.none_of(_PACKET_TYPE, _JEQ, _OUTGOING)
    if wanted.ports is not None or wanted.either_ports or wanted.connections is not None:
        made.any_of([(_TYPE, [_IPV4]), (_PROTOCOL, [_TCP])])
        made.none_of(_FRAGMENT, _JSET, 0x1FFF)  # later fragments have no ports
    _whose(made, wanted)
    if wanted.peers:
        peers = sorted(map(_number, wanted.peers))
        made.any_of([(_SOURCE, peers)], [(_DESTINATION, peers)])
    if wanted.either_ports:
        ports = sorted(wanted.either_ports)
        made.any_of([(_SOURCE_PORT, ports)], [(_DESTINATION_PORT, ports)])
    if wanted.connections is not None:
        ordered = sorted(wanted.connections, key=lambda one: (one.port, one.peer, one.peer_port))
        made.any_of(*(way for one in ordered for way in _connection(one)))
    made.code.append((_RET, 0, 0, snaplen))
    if len(made.code) > PROGRAM_MOST:
        raise ValueError(
            f"a filter of {len(made.code)} instructions, and the kernel takes "
            f"{PROGRAM_MOST}: name fewer flows"
        )
    return made.code
