# SPDX-License-Identifier: Apache-2.0
"""Two ends of a connection: HARP's stack in this process, and Linux behind a TUN device."""

from __future__ import annotations

import errno
import itertools
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Optional

import pytest
from scapy.layers.inet import IP, TCP

from harp.testing._stack import Socket
from harp.testing.dialogue import make_stack
from harp.testing.tun import (
    HARP_ADDRESS,
    KERNEL_ADDRESS,
    AnySocket,
    Fate,
    Kernel,
    TunWire,
    state_of,
)
from harp.testing.wire import pattern

KB = 1000
PORT = 4000
TCP_WINDOW_CLAMP = 10
BEHIND = 1 << 24  # the pattern offset of the stream back: the two streams differ


@dataclass(frozen=True)
class Case:
    """One combination. stack: HARP's configuration. sysctls, clamp, buffer and mss: the kernel's
    sysctls, window clamp, receive buffer and MSS. harp_mss: HARP's MSS. every: one of this many
    data packets is lost. slow: readers that let the window close."""

    name: str
    harp_connects: bool = True
    stack: dict[str, Any] = field(default_factory=dict)
    sysctls: dict[str, Any] = field(default_factory=dict)
    mtu: int = 1500
    clamp: int = 0
    buffer: int = 0
    mss: int = 0
    harp_mss: int = 0
    every: int = 0
    slow: bool = False
    size: int = 200 * KB
    in_sample: bool = False

    def __str__(self) -> str:
        return self.name

    def fate(self) -> Optional[Fate]:
        if not self.every:
            return None
        numbers = itertools.count(1)

        def goes_on(to_kernel: bool, packet: bytes) -> bool:
            return len(packet) < 200 or next(numbers) % self.every != 0

        return goes_on


@dataclass
class Ends:
    """The sockets of a connection. The listener stays open for more."""

    wire: TunWire
    harp: AnySocket
    linux: AnySocket
    listener: AnySocket

    def close(self) -> None:
        for end in (self.harp, self.linux, self.listener):
            with suppress(OSError):
                end.close()


def make_ends(wire: TunWire, case: Case) -> tuple[AnySocket, AnySocket]:
    """A socket of HARP and one of the kernel, with the case's settings."""
    harp, linux = wire.stack.socket(), wire.kernel.socket()
    linux.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for number, option, value in (
        (socket.SOL_SOCKET, socket.SO_RCVBUF, case.buffer),
        (socket.IPPROTO_TCP, TCP_WINDOW_CLAMP, case.clamp),
        (socket.IPPROTO_TCP, socket.TCP_MAXSEG, case.mss),
    ):
        if value:
            linux.setsockopt(number, option, value)
    if case.harp_mss:
        harp.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, case.harp_mss)
    return harp, linux


def address_of(end: AnySocket) -> str:
    return HARP_ADDRESS if isinstance(end, Socket) else KERNEL_ADDRESS


def connect(end: AnySocket, to: AnySocket, port: int = PORT) -> None:
    assert end.connect_ex((address_of(to), port)) == errno.EINPROGRESS


def accept(listener: AnySocket) -> Optional[AnySocket]:
    try:
        made, _ = listener.accept()
    except BlockingIOError:
        return None
    if isinstance(made, socket.socket):
        made.setblocking(False)
    return made


def listen(end: AnySocket, port: int = PORT) -> None:
    end.bind((address_of(end), port))
    end.listen(4)


def connected(wire: TunWire, case: Case) -> Ends:
    harp, linux = make_ends(wire, case)
    connecting, listener = (harp, linux) if case.harp_connects else (linux, harp)
    listen(listener)
    return more(wire, connecting, listener)


def more(wire: TunWire, connecting: AnySocket, listener: AnySocket) -> Ends:
    """Connects to the listener, which accepts."""
    connect(connecting, listener)
    accepted: list[AnySocket] = []

    def taken() -> bool:
        one = accept(listener)
        accepted.extend([one] if one else [])
        return bool(accepted) and state_of(connecting) == "ESTABLISHED"

    wire.run(taken)
    if isinstance(connecting, Socket):
        return Ends(wire, connecting, accepted[0], listener)
    return Ends(wire, accepted[0], connecting, listener)


class Stream:
    """A verified stream of the pattern in one direction. shuts: the sender closes at the end."""

    def __init__(self, sender: AnySocket, receiver: AnySocket, size: int, start: int,
                 slow: bool = False, shuts: bool = True) -> None:  # fmt: skip
        self.sender, self.receiver = sender, receiver
        self.size, self.start = size, start
        self.slow, self.shuts = slow, shuts
        self.sent = self.received = 0
        self._shut = self._ended = False
        self._turns = itertools.count()

    def step(self) -> bool:
        """One step of both ends. Returns whether the stream is complete."""
        with suppress(BlockingIOError):
            self._send()
        if not (self.slow and next(self._turns) % 4):
            with suppress(BlockingIOError):
                self._receive()
        return self._ended if self.shuts else self.received == self.size

    def _send(self) -> None:
        while self.sent < self.size:
            length = min(self.size - self.sent, 1 << 16)
            self.sent += self.sender.send(pattern(self.start + self.sent, length))
        if self.shuts and not self._shut:
            self.sender.shutdown(socket.SHUT_WR)
            self._shut = True

    def _receive(self) -> None:
        """Receives all available data; a slow reader receives little at a time."""
        while not self._ended:
            data = self.receiver.recv(500 if self.slow else 1 << 16)
            right = pattern(self.start + self.received, len(data))
            assert data == right, f"wrong bytes after {self.received}"
            self.received += len(data)
            self._ended = not data
            if self.slow:
                break
        assert self.received <= self.size
        assert self.received == self.size or not self._ended, f"only {self.received} bytes arrived"


def converse(ends: Ends, case: Case) -> None:
    """Runs streams in both directions at once, to their ends."""
    streams = [
        Stream(ends.harp, ends.linux, case.size, 0, case.slow),
        Stream(ends.linux, ends.harp, case.size, BEHIND, case.slow),
    ]
    ends.wire.run(lambda: all([stream.step() for stream in streams]))


@pytest.fixture
def case() -> Case:
    """The default case."""
    return Case("plain", stack={"window_scale": 7, "timestamps": 1, "rcvbuf": 1 << 18})


@pytest.fixture
def wire(case: Case) -> Iterator[TunWire]:
    with Kernel(case.mtu, **case.sysctls) as kernel:
        yield TunWire(make_stack(address=HARP_ADDRESS, **case.stack), kernel, case.fate())


def received(wire: TunWire, end: AnySocket) -> bytes:
    """Receives up to the end of the stream."""
    parts: list[bytes] = []

    def ended() -> bool:
        with suppress(BlockingIOError):
            while True:
                parts.append(end.recv(1 << 16))
                if not parts[-1]:
                    return True
        return False

    wire.run(ended)
    return b"".join(parts)


def flags(raw: bytes) -> str:
    return str(IP(raw)[TCP].flags)
