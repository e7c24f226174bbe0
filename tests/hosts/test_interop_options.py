# SPDX-License-Identifier: Apache-2.0
"""HARP's TCP and Linux's agree on every option, and on the begin and end of a connection.

HARP's stack is in this process, the kernel at the other end of a TUN device. The tests observe,
drop and hold back packets to bring both sides into a state. Bytes are verified in both directions.
A sample of the combinations runs by default, all with HARP_TEST_FULL=1.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from interop_ends import (
    BEHIND,
    KB,
    PORT,
    Case,
    Ends,
    Stream,
    address_of,
    connect,
    connected,
    converse,
    flags,
    make_ends,
    received,
)
from scapy.layers.inet import IP, TCP

from harp.testing.tun import TunWire, info_of, state_of
from harp.testing.wire import pattern

FULL = os.environ.get("HARP_TEST_FULL") == "1"
TIMESTAMPS, SACK, WINDOW_SCALE = 1, 2, 4  # of tcpi_options
HEADERS = 40
TIMESTAMP_OPTION = 12

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a namespace needs root")


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


@pytest.mark.quick_cases(3)
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
