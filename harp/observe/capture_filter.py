# SPDX-License-Identifier: Apache-2.0
"""The filter of a capture: a classic BPF program that the kernel runs on each frame."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from harp.observe.packet_ring import Instruction

PROGRAM_MOST = 4096  # BPF_MAXINSNS: most instructions that the kernel accepts

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
Test = tuple[Load, Sequence[int]]  # the loaded value is one of these


@dataclass(frozen=True)
class Connection:
    """The two ends of a flow: the local port, the peer's address and port."""

    port: int
    peer: str
    peer_port: int


@dataclass(frozen=True)
class Target:
    """The frames to capture on `interface`: all of `address`, or only those of its TCP `ports` if
    the kernel shares the address. The other fields narrow this down if given: to one of `peers`,
    to one of `either_ports` at either end, to one of `connections`, and to sent ("out") or
    received ("in") frames (`direction`), and to those for which a BPF program does not return 0
    (`expression`)."""

    interface: str
    address: str
    ports: Optional[frozenset[int]]
    peers: frozenset[str] = frozenset()
    either_ports: frozenset[int] = frozenset()
    connections: Optional[frozenset[Connection]] = None
    direction: Optional[str] = None
    expression: tuple[Instruction, ...] = ()


def _number(address: str) -> int:
    return int(struct.unpack("!I", socket.inet_aton(address))[0])


class _Program:
    """A BPF program of conditions; a frame must pass them all."""

    def __init__(self) -> None:
        self.code: list[Instruction] = []

    def _jump(self) -> int:
        """Adds a jump with a target that _land fills in."""
        self.code.append((_JA, 0, 0, 0))
        return len(self.code) - 1

    def _land(self, jumps: Iterable[int]) -> None:
        """Makes these jumps lead to the next instruction."""
        for at in jumps:
            self.code[at] = (_JA, 0, 0, len(self.code) - at - 1)

    def any_of(self, *alternatives: Sequence[Test]) -> None:
        """Rejects a frame that passes none of the alternatives. A frame must pass every test of an
        alternative."""
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

    def passes(self, program: Sequence[Instruction]) -> None:
        """Rejects a frame for which the program returns 0."""
        accepted = []
        for one in program:
            code, _, _, operand = one
            if code == _RET and operand:
                accepted.append(self._jump())
            else:
                self.code.append(one)
        self._land(accepted)

    def none_of(self, load: Load, comparison: int, value: int) -> None:
        self.code += [*load, (comparison, 0, 1, value), _REJECT]


def _connection(one: Connection) -> list[Sequence[Test]]:
    """The tests for the two directions of a connection."""
    peer = [_number(one.peer)]
    return [
        [(_SOURCE, peer), (_SOURCE_PORT, [one.peer_port]), (_DESTINATION_PORT, [one.port])],
        [(_DESTINATION, peer), (_DESTINATION_PORT, [one.peer_port]), (_SOURCE_PORT, [one.port])],
    ]


def _whose(program: _Program, wanted: Target) -> None:
    """Adds the condition that the frame belongs to the process."""
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
    """The filter program; it keeps the first `snaplen` bytes of a frame. Raises ValueError if the
    program is too long for the kernel."""
    made = _Program()
    made.passes(wanted.expression)
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
            f"the filter has {len(made.code)} instructions, but the kernel accepts {PROGRAM_MOST}: "
            "name fewer flows, or give a shorter expression"
        )
    return made.code
