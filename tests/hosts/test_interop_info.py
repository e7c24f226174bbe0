# SPDX-License-Identifier: Apache-2.0
"""HARP's TCP_INFO of a connection, compared with Linux's at the other end and with the packets on
the wire: the fields that `ss -ti` shows."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Optional

import pytest
from scapy.layers.inet import IP, TCP

from harp.testing.dialogue import make_stack
from harp.testing.tun import HARP_ADDRESS, KERNEL_ADDRESS, Kernel, TunWire, info_of, state_of
from harp.testing.wire import pattern

PORT = 4000
MSS = 1448  # with timestamps
TIMESTAMPS, SACK, WINDOW_SCALE = 1, 2, 4
INFINITE = 0x7FFFFFFF  # Linux's value of an ssthresh that was never set
TICK_MS = 10  # the kernel's clock, and a segment's way from one end to the other
OPEN, RECOVERY = 0, 3  # of tcpi_ca_state


class Pair:
    """An established connection between HARP (`harp`) and the kernel (`linux`), the listener."""

    def __init__(self, kernel: Kernel) -> None:
        stack = make_stack(address=HARP_ADDRESS, timestamps=1, window_scale=7, rcvbuf=1 << 18)
        self.wire = TunWire(stack, kernel)
        self.listener = kernel.socket()
        self.listener.bind((KERNEL_ADDRESS, PORT))
        self.listener.listen(1)
        self.harp = stack.socket()
        self.harp.connect_ex((KERNEL_ADDRESS, PORT))
        self.wire.run(lambda: state_of(self.harp) == "ESTABLISHED")
        taken: list[socket.socket] = []

        def accepted() -> bool:
            with suppress(BlockingIOError):
                taken.append(self.listener.accept()[0])
            return bool(taken)

        self.wire.run(accepted)
        (self.linux,) = taken
        self.linux.setblocking(False)

    def close(self) -> None:
        self.linux.close()
        self.listener.close()

    def move(self, size: int, back: bool = False) -> None:
        """Moves `size` bytes to the kernel, or back, until they are acknowledged."""
        sender, receiver = (self.linux, self.harp) if back else (self.harp, self.linux)
        sent = received = 0

        def over() -> bool:
            nonlocal sent, received
            with suppress(BlockingIOError):
                while sent < size:
                    sent += sender.send(pattern(sent, min(size - sent, 1 << 16)))
            with suppress(BlockingIOError):
                received += len(receiver.recv(1 << 16))
            return received == size and info_of(sender)["unacked"] == 0

        self.wire.run(over)

    def data(self, to_kernel: bool = True) -> list[TCP]:
        """The data segments on the wire."""
        segments = [IP(raw)[TCP] for way, raw in self.wire.seen if way == to_kernel]
        return [segment for segment in segments if segment.payload]

    def again(self, to_kernel: bool = True) -> int:
        """The number of retransmitted segments: those with data, and SYN segments, that do not
        begin behind all earlier ones. A tail loss probe may begin inside one of them."""
        segments = [IP(raw)[TCP] for way, raw in self.wire.seen if way == to_kernel]
        count, end = 0, None
        for one in segments:
            length = len(one.payload) + ("S" in one.flags)
            if not length:
                continue
            if end is not None and (one.seq - end) % (1 << 32) >= 1 << 31:
                count += 1
            else:
                end = one.seq + length
        return count


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Kernel() as kernel:
        made = Pair(kernel)
        yield made
        made.close()


def test_tcp_info_matches_linux_after_transfers(pair: Pair) -> None:
    harp, linux = info_of(pair.harp), info_of(pair.linux)
    assert harp["snd_ssthresh"] == linux["snd_ssthresh"] == INFINITE
    assert harp["snd_cwnd"] == linux["snd_cwnd"] == 10
    pair.move(300_000)
    pair.move(200_000, back=True)
    harp, linux = info_of(pair.harp), info_of(pair.linux)
    assert harp["state"] == linux["state"]
    assert harp["options"] == linux["options"] == TIMESTAMPS | SACK | WINDOW_SCALE
    assert harp["snd_mss"] == linux["snd_mss"] == harp["rcv_mss"] == linux["rcv_mss"] == MSS
    assert harp["pmtu"] == linux["pmtu"] == 1500
    assert harp["advmss"] - linux["advmss"] in (0, 12)  # Linux subtracts the timestamps option
    assert harp["ca_state"] == OPEN and harp["backoff"] == harp["probes"] == 0
    assert harp["unacked"] == harp["sacked"] == harp["lost"] == harp["retrans"] == 0
    assert harp["snd_cwnd"] > 10 and linux["snd_cwnd"] > 10
    for to_kernel, info in ((True, harp), (False, linux)):
        assert 0 < info["rtt"] < 10**6
        assert info["rto"] >= 200_000
        assert info["total_retrans"] == pair.again(to_kernel)  # not 0 on a busy machine


def test_tcp_info_last_data_times_match_linux(pair: Pair) -> None:
    began = time.monotonic()
    pair.move(1000)
    moving_ms = (time.monotonic() - began) * 1e3 + TICK_MS
    pair.wire.run_for(0.3)
    asked = time.monotonic()
    harp, linux = info_of(pair.harp), info_of(pair.linux)
    now = time.monotonic()
    # Each moment lies within the move; the two sides are asked one after the other.
    for quiet in (harp["last_data_sent"], harp["last_ack_recv"], linux["last_data_recv"]):
        assert 300 - TICK_MS <= quiet <= (now - began) * 1e3 + TICK_MS
    apart_ms = moving_ms + (now - asked) * 1e3
    assert abs(harp["last_data_sent"] - linux["last_data_recv"]) <= apart_ms
    assert abs(harp["last_ack_recv"] - harp["last_data_sent"]) <= moving_ms


def test_tcp_info_unacked_matches_segments_in_flight(pair: Pair) -> None:
    """Without acknowledgements, HARP's unacked is the number of sent segments."""
    pair.wire.hold(False)
    pair.wire.seen.clear()
    pair.harp.send(pattern(0, 100_000))
    pair.wire.run_for(0.02)
    harp = info_of(pair.harp)
    assert harp["unacked"] == len({one.seq for one in pair.data()})
    assert harp["snd_cwnd"] == 10 and harp["unacked"] in (10, 11), (
        "more than the window and a tail loss probe"
    )
    pair.wire.hold(False, on=False)
    pair.wire.run(lambda: info_of(pair.harp)["unacked"] != harp["unacked"])


def test_tcp_info_sacked_and_lost_match_linux(pair: Pair) -> None:
    """The first segment is late, and the following ones arrive. HARP's sacked is Linux's number of
    out-of-order segments. The retransmission is counted as Linux does."""
    pair.move(50_000)
    late: Optional[int] = None

    def first_is_late(to_kernel: bool, packet: bytes) -> bool:
        nonlocal late
        segment = IP(packet)[TCP]
        if not to_kernel or not segment.payload:
            return True
        late = segment.seq if late is None else late
        return bool(segment.seq != late)

    pair.wire.fate = first_is_late
    pair.harp.send(pattern(0, 8 * MSS))
    pair.wire.run(lambda: info_of(pair.harp)["sacked"] == 7)
    pair.wire.run(lambda: info_of(pair.harp)["retrans"] >= 1)
    harp, linux = info_of(pair.harp), info_of(pair.linux)
    assert linux["rcv_ooopack"] == 7
    assert (harp["unacked"], harp["sacked"], harp["lost"]) == (8, 7, 1)
    assert harp["ca_state"] == RECOVERY
    assert harp["snd_ssthresh"] < INFINITE
    pair.wire.fate = None
    pair.wire.run(lambda: info_of(pair.harp)["unacked"] == 0)
    assert info_of(pair.harp)["total_retrans"] == pair.again() >= 1
    assert info_of(pair.harp)["ca_state"] == OPEN
