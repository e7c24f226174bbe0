# SPDX-License-Identifier: Apache-2.0
"""HARP's TCP and Linux's agree on every option, and on the begin and end of a connection.

HARP's stack is in this process, the kernel at the other end of a TUN device. The tests observe,
drop and hold back packets to bring both sides into a state. Bytes are verified in both directions.
A sample of the combinations runs by default, all with HARP_TEST_FULL=1.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    info_of,
    state_of,
)
from harp.testing.wire import pattern

KB = 1000
FULL = os.environ.get("HARP_TEST_FULL") == "1"
PORT = 4000
TCP_WINDOW_CLAMP = 10
TIMESTAMPS, SACK, WINDOW_SCALE = 1, 2, 4  # of tcpi_options
HEADERS = 40
TIMESTAMP_OPTION = 12
BEHIND = 1 << 24  # the pattern offset of the stream back: the two streams differ

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a namespace needs root")


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


def window_scales() -> Iterator[Case]:
    """Scales from 0 to 14: HARP's rises while the kernel's falls."""
    for scale, connects in itertools.product(range(15), (True, False)):
        clamp = 1 << (15 + 14 - scale)
        yield Case(
            f"window scales {scale} and {14 - scale}, {'harp' if connects else 'linux'} connects",
            connects,
            {"window_scale": scale, "rcvbuf": 1 << 20},
            {"tcp_rmem": f"4096 131072 {1 << 29}"},
            clamp=clamp,
            in_sample=(scale, connects) in ((0, True), (14, False), (7, False)),
        )
    for (ours, theirs), connects in itertools.product(((-1, 1), (7, 0), (-1, 0)), (True, False)):
        yield Case(
            f"window scales {'off' if ours < 0 else 'on'} and {'on' if theirs else 'off'}, "
            f"{'harp' if connects else 'linux'} connects",
            connects,
            {"window_scale": ours},
            {"tcp_window_scaling": theirs},
            in_sample=(ours < 0) == (theirs > 0) and not connects,
        )


def options_on_and_off() -> Iterator[Case]:
    """Timestamps and SACK on or off at either side, while every thirtieth data packet is lost."""
    for ts, their_ts, sack, their_sack, connects in itertools.product((1, 0), repeat=5):
        yield Case(
            f"timestamps {ts} and {their_ts}, SACK {sack} and {their_sack}, "
            f"{'harp' if connects else 'linux'} connects",
            bool(connects),
            {"timestamps": ts, "sack": sack, "window_scale": 7, "rcvbuf": 1 << 18},
            {"tcp_timestamps": their_ts, "tcp_sack": their_sack},
            every=30,
            in_sample=(ts, their_ts) == (sack, their_sack) and (ts == their_ts) == bool(connects),
        )


def tiny_buffers() -> Iterator[Case]:
    for harps, theirs in ((1000, 0), (2048, 0), (536, 1), (65535, 1), (1, 1), (100, 4000)):
        yield Case(
            f"receive buffers {harps} and {theirs or 'usual'}",
            stack={"rcvbuf": harps},
            buffer=theirs,
            slow=True,
            size=min(20 * KB, 200 * harps),
            in_sample=(harps, theirs) in ((1000, 0), (65535, 1)),
        )


def segment_sizes() -> Iterator[Case]:
    for mss in (536, 537, 1000, 1220, 1460, 2900, 4312, 8960):
        for timestamps in (0, 1):
            yield Case(
                f"MSS {mss} by the MTU, timestamps {timestamps}",
                bool(timestamps),
                {"mtu": mss + HEADERS, "timestamps": timestamps},
                mtu=mss + HEADERS,
                in_sample=(mss, timestamps) in ((536, 0), (8960, 1)),
            )
    for ours, theirs in ((536, 0), (0, 536), (1000, 536), (8960, 1000), (8000, 8960)):
        yield Case(
            f"MSS {ours or 'usual'} and {theirs or 'usual'} by the sockets' option",
            stack={"mtu": 9000},
            mtu=9000,
            mss=theirs,
            harp_mss=ours,
            in_sample=(ours, theirs) == (1000, 536),
        )


CASES = [*window_scales(), *options_on_and_off(), *tiny_buffers(), *segment_sizes()]


# -- two ends


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


# -- options


@dataclass(frozen=True)
class Agreed:
    """The expected negotiation of a case. mss: announced by either side, HARP first."""

    options: int
    scales: tuple[int, int]
    mss: tuple[int, int]

    @classmethod
    def of(cls, case: Case) -> Agreed:
        ours, theirs = {"sack": 1, "timestamps": 0, "window_scale": -1, **case.stack}, case.sysctls
        options = 0
        if ours["window_scale"] >= 0 and theirs.get("tcp_window_scaling", 1):
            options |= WINDOW_SCALE
        if ours["timestamps"] and theirs.get("tcp_timestamps", 1):
            options |= TIMESTAMPS
        if ours["sack"] and theirs.get("tcp_sack", 1):
            options |= SACK
        # The kernel offers the scale that its largest window needs.
        scales = (ours["window_scale"], case.clamp.bit_length() - 16 if case.clamp else -1)
        announced = (case.harp_mss or case.mtu - HEADERS, case.mss or case.mtu - HEADERS)
        return cls(options, scales if options & WINDOW_SCALE else (0, 0), announced)

    @property
    def payload(self) -> int:
        """The payload of the largest segment."""
        return min(self.mss) - (TIMESTAMP_OPTION if self.options & TIMESTAMPS else 0)


def check_info(ends: Ends, agreed: Agreed) -> None:
    harp, linux = info_of(ends.harp), info_of(ends.linux)
    assert harp["options"] == linux["options"] == agreed.options
    scales = (harp["rcv_wscale"], linux["rcv_wscale"])
    assert (linux["snd_wscale"], harp["snd_wscale"]) == scales
    if agreed.scales[1] >= 0:
        assert scales == agreed.scales


def check_answer(wire: TunWire) -> None:
    """Checks that the SYN-ACK has only options of the SYN."""
    syns = [one for _, raw in wire.seen if "S" in (one := IP(raw)[TCP]).flags]
    names = [{name for name, _ in one.options} - {"NOP", "EOL"} for one in syns]
    assert names[-1] <= names[0]


def check_segments(wire: TunWire, case: Case, agreed: Agreed) -> None:
    for to_kernel in (True, False):
        segments = [IP(raw)[TCP] for way, raw in wire.seen if way == to_kernel]
        (mss,) = {dict(one.options)["MSS"] for one in segments if "S" in one.flags}
        assert mss == agreed.mss[0 if to_kernel else 1]
        largest = max(len(one.payload) for one in segments)
        assert largest <= agreed.payload
        assert largest == agreed.payload or case.slow


@pytest.mark.parametrize("case", [one for one in CASES if FULL or one.in_sample], ids=str)
def test_negotiated_options_match_on_both_sides(wire: TunWire, case: Case) -> None:
    """TCP_INFO matches on either side, segments are exactly as large as both allow, and all bytes
    are right in both directions at once."""
    agreed, ends = Agreed.of(case), connected(wire, case)
    check_answer(wire)
    check_info(ends, agreed)
    converse(ends, case)
    check_segments(wire, case, agreed)
    if case.every:
        assert info_of(ends.harp)["total_retrans"] and info_of(ends.linux)["total_retrans"]
    ends.close()


# -- begin and end of a connection


def test_urgent_data_stays_in_the_stream(wire: TunWire, case: Case) -> None:
    """HARP receives it in line (RFC 6093), at any place. No byte is lost or duplicated."""
    ends = connected(wire, case)
    sent = b""
    for number in range(20):
        ends.linux.send(pattern(len(sent), 1000 + number))
        sent += pattern(len(sent), 1000 + number)
        ends.linux.send(b"!", socket.MSG_OOB)
        sent += b"!"
        wire.step()
    ends.linux.shutdown(socket.SHUT_WR)
    assert received(wire, ends.harp) == sent
    assert any("U" in IP(raw)[TCP].flags for _, raw in wire.seen)
    ends.close()


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


ROLES = pytest.mark.parametrize("harp_first", [True, False], ids=["harp", "linux"])


@ROLES
def test_half_close_keeps_other_direction_open(wire: TunWire, case: Case, harp_first: bool) -> None:
    """One side closes its direction; the other continues to send."""
    ends = connected(wire, case)
    first, second = (ends.harp, ends.linux) if harp_first else (ends.linux, ends.harp)
    early, late = Stream(first, second, 100, 0), Stream(second, first, 500 * KB, BEHIND)
    wire.run(early.step)
    wire.run(lambda: state_of(first) == "FIN_WAIT2")
    assert state_of(second) == "CLOSE_WAIT"
    wire.run(late.step)
    wire.run(lambda: state_of(second) == "CLOSE")
    assert state_of(first) in ("TIME_WAIT", "CLOSE")  # the kernel's TIME-WAIT has no socket
    ends.close()


def test_simultaneous_open(wire: TunWire, case: Case) -> None:
    """Both sides connect, and the SYNs cross (RFC 9293, 3.5): there is one connection."""
    harp, linux = make_ends(wire, case)
    for end in (harp, linux):
        end.bind((address_of(end), PORT))
    for way in (True, False):
        wire.hold(way)
    connect(harp, linux)
    connect(linux, harp)
    wire.run(lambda: wire.held[True] and wire.held[False])
    assert state_of(harp) == state_of(linux) == "SYN_SENT"
    for way in (True, False):
        wire.hold(way, False)
    ends = Ends(wire, harp, linux, wire.stack.socket())
    wire.run(lambda: state_of(harp) == state_of(linux) == "ESTABLISHED")
    crossed = [(to_kernel, flags(raw)) for to_kernel, raw in wire.seen if "S" in flags(raw)]
    assert sorted(crossed) == [(False, "S"), (False, "SA"), (True, "S"), (True, "SA")]
    converse(ends, case)
    ends.close()


def test_simultaneous_close_reaches_time_wait(wire: TunWire, case: Case) -> None:
    ends = connected(wire, case)
    for way in (True, False):
        wire.hold(way)
    for end in (ends.harp, ends.linux):
        end.shutdown(socket.SHUT_WR)
    wire.run(lambda: wire.held[True] and wire.held[False])
    assert state_of(ends.harp) == state_of(ends.linux) == "FIN_WAIT1"
    for way in (True, False):
        wire.hold(way, False)
    wire.run(lambda: state_of(ends.harp) == "TIME_WAIT")
    wire.run(lambda: state_of(ends.linux) == "CLOSE")  # the kernel reports this state for TIME-WAIT
    assert received(wire, ends.harp) == received(wire, ends.linux) == b""
    ends.close()


# -- resets


QUIET_S = 0.3  # longer than an RTO of either side
STAYS_S = 1.3  # longer than the first RTO of a SYN, which is a second


def abort(end: AnySocket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


def error_of(end: AnySocket) -> int:
    if isinstance(end, Socket):
        return int(end.error())
    return end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def flags(raw: bytes) -> str:
    return str(IP(raw)[TCP].flags)


@dataclass
class Meeting:
    """The side that gets the reset, and the side that sends it. `out`: the direction from the
    first."""

    wire: TunWire
    victim: AnySocket
    peer: AnySocket

    @property
    def out(self) -> bool:
        return isinstance(self.victim, Socket)

    def until(self, state: str) -> None:
        self.wire.run(lambda: state_of(self.victim) == state)


def into_established(m: Meeting) -> None:
    m.until("ESTABLISHED")


def into_fin_wait1(m: Meeting) -> None:
    m.wire.hold(m.out)  # the peer does not receive the FIN
    m.victim.shutdown(socket.SHUT_WR)
    m.until("FIN_WAIT1")


def into_fin_wait2(m: Meeting) -> None:
    m.victim.shutdown(socket.SHUT_WR)
    m.until("FIN_WAIT2")


def into_close_wait(m: Meeting) -> None:
    m.peer.shutdown(socket.SHUT_WR)
    m.until("CLOSE_WAIT")


def into_closing(m: Meeting) -> None:
    into_fin_wait1(m)
    m.peer.shutdown(socket.SHUT_WR)
    m.until("CLOSING")


def into_last_ack(m: Meeting) -> None:
    into_close_wait(m)
    m.wire.run(lambda: state_of(m.peer) == "FIN_WAIT2")
    m.wire.hold(m.out)
    m.victim.shutdown(socket.SHUT_WR)
    m.until("LAST_ACK")


NOTHING_LEFT = (0, errno.ECONNRESET, errno.EPIPE)  # allowed errors of sends and receives
RESETS = {
    into_established: (errno.ECONNRESET,),
    into_fin_wait1: (errno.ECONNRESET,),
    into_fin_wait2: (errno.ECONNRESET,),
    into_close_wait: (errno.ECONNRESET, errno.EPIPE),
    into_closing: NOTHING_LEFT,
    into_last_ack: NOTHING_LEFT,
}
VICTIMS = pytest.mark.parametrize("harp_is_reset", [True, False], ids=["harp is", "linux is"])


def meeting(wire: TunWire, case: Case, harp_is_reset: bool) -> tuple[Meeting, AnySocket]:
    """An established connection to a listener on the side of the reset, and that listener."""
    ends = connected(wire, replace(case, harp_connects=not harp_is_reset))
    pair = (ends.harp, ends.linux) if harp_is_reset else (ends.linux, ends.harp)
    return Meeting(wire, *pair), ends.listener


@VICTIMS
@pytest.mark.parametrize("bring", RESETS, ids=lambda bring: bring.__name__)
def test_reset_closes_every_state(
    wire: TunWire, case: Case, bring: Any, harp_is_reset: bool
) -> None:
    """A reset closes the connection at once, the program gets the error, and the port accepts other
    connections."""
    m, listener = meeting(wire, case, harp_is_reset)
    bring(m)
    wire.seen.clear()
    abort(m.peer)
    m.until("CLOSE")
    assert error_of(m.victim) in RESETS[bring]
    resets = [raw for to_kernel, raw in wire.seen if to_kernel != m.out and "R" in flags(raw)]
    assert resets
    wire.held[m.out].clear()
    wire.hold(m.out, False)
    wire.seen.clear()
    wire.give(not m.out, resets[-1])  # a repetition: a listener ignores it
    wire.run_for(QUIET_S)
    assert not wire.seen
    harp, linux = make_ends(wire, case)
    converse(more(wire, linux if harp_is_reset else harp, listener), case)


@VICTIMS
def test_reset_in_syn_sent_is_econnrefused(wire: TunWire, case: Case, harp_is_reset: bool) -> None:
    """The port has no listener."""
    harp, linux = make_ends(wire, case)
    victim, other = (harp, linux) if harp_is_reset else (linux, harp)
    connect(victim, other)
    assert state_of(victim) == "SYN_SENT"
    wire.run(lambda: state_of(victim) == "CLOSE")
    assert error_of(victim) == errno.ECONNREFUSED


@VICTIMS
def test_reset_in_syn_received_returns_to_listen(
    wire: TunWire, case: Case, harp_is_reset: bool
) -> None:
    """The connecting side aborts before it receives the SYN-ACK."""
    harp, linux = make_ends(wire, case)
    listener, other = (harp, linux) if harp_is_reset else (linux, harp)
    listen(listener)
    wire.hold(harp_is_reset)
    connect(other, listener)
    wire.run(lambda: wire.held[harp_is_reset])
    assert flags(wire.held[harp_is_reset][0]) == "SA"
    other.close()
    wire.seen.clear()
    wire.hold(harp_is_reset, False)
    wire.run_for(STAYS_S)
    assert [flags(raw)[0] for _, raw in wire.seen] == ["R"], "the SYN-ACK was sent again"
    assert accept(listener) is None
    harp, linux = make_ends(wire, case)
    converse(more(wire, linux if harp_is_reset else harp, listener), case)


@VICTIMS
def test_reset_in_time_wait_is_ignored_by_harp(
    wire: TunWire, case: Case, harp_is_reset: bool
) -> None:
    """A late copy of the last ACK reaches a closed connection and draws a reset. HARP stays in
    TIME-WAIT (RFC 1337); Linux leaves it by default."""
    m, _ = meeting(wire, case, harp_is_reset)
    into_fin_wait2(m)
    wire.seen.clear()
    m.peer.shutdown(socket.SHUT_WR)
    wire.run(lambda: state_of(m.peer) == "CLOSE")
    m.peer.close()
    (last,) = [raw for to_kernel, raw in wire.seen if to_kernel == m.out]
    if harp_is_reset:
        assert state_of(m.victim) == "TIME_WAIT"
    else:
        assert wire.kernel.waiting() == 1
    wire.seen.clear()
    wire.give(m.out, last)
    wire.run(lambda: wire.seen)
    (answer,) = [raw for _, raw in wire.seen]
    assert "R" in flags(answer)
    if harp_is_reset:
        wire.run_for(0.05)
        assert state_of(m.victim) == "TIME_WAIT"
    else:
        assert wire.kernel.waiting() == 0
