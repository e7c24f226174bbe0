# SPDX-License-Identifier: Apache-2.0
"""Packet memory that runs out: windows may overcommit it, acknowledged data is never lost."""

from __future__ import annotations

import random
import socket

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import make_stack
from harp.testing.flights import read_all
from harp.testing.wire import Impairment, Transfer, connect_pair, pattern

# Values between the first and the last one, which tools/test --fast leaves out.
BETWEEN = (pytest.mark.slow, pytest.mark.sanitized)


def accept_two(d):
    """Two connections, of the peer's ports 5001 and 5002; from here on frames may be ignored."""
    listener = d.listen(80)
    for port in (5001, 5002):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    two = d.accept(listener), d.accept(listener)
    d.strict = False
    return two


@pytest.mark.slow
@pytest.mark.sanitized
def test_small_segments_do_not_exhaust_the_pool(dialogue):
    """A window of bytes, filled byte by byte: each must not hold a packet of its own."""
    d = dialogue(packets=32, rcvbuf=20_000, delayed_ack_us=0)
    c = d.open_passive()
    stream = pattern(0, 4000)
    d.strict = False
    for at in range(len(stream)):
        d.stack.input(d.build(TCP(flags="A", seq=1 + at, ack=1) / stream[at : at + 1]))
    d.settle()
    last = d.drain()[-1]
    assert last[TCP].ack == 1 + len(stream)
    assert read_all(c) == stream


@pytest.mark.parametrize(
    "size", [1, *(pytest.param(size, marks=BETWEEN) for size in (10, 100, 536)), 1460]
)
def test_acked_data_is_kept_when_pool_is_exhausted(dialogue, size):
    """Connections without readers share a small pool: some data is refused, none is lost."""
    d = dialogue(packets=64, rcvbuf=65_535, max_connections=16)
    listener = d.listen(80)
    sockets = {}
    for port in range(5001, 5009):
        d.send(TCP(sport=port, flags="S", seq=0, options=[("MSS", 1460)]))
        d.expect(TCP(dport=port, flags="SA"))
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
        sockets[port] = d.accept(listener)
    acked = dict.fromkeys(sockets, 0)
    r = random.Random(size)
    d.strict = False
    for _ in range(1500):
        port = r.choice(list(sockets))
        at = max(0, acked[port] - r.randrange(3)) if r.random() < 0.8 else (
            acked[port] + r.randrange(1, 3000))  # fmt: skip
        frame = d.build(TCP(sport=port, flags="A", seq=1 + at, ack=1) / pattern(port + at, size))
        d.stack.input(frame)
        for packet in d.drain():
            peer = packet[TCP].dport
            acked[peer] = max(acked[peer], packet[TCP].ack - 1)
    for packet in d.drain(until=d.now + 100):
        acked[packet[TCP].dport] = max(acked[packet[TCP].dport], packet[TCP].ack - 1)
    assert sum(acked.values()) > 0
    for port, sock in sockets.items():
        data = read_all(sock)
        assert len(data) >= acked[port]
        assert data == pattern(port, len(data))


@pytest.mark.parametrize(
    "scale", [0, *(pytest.param(scale, marks=BETWEEN) for scale in (7, 10)), 14]
)
def test_unread_stream_stays_within_receive_buffer(dialogue, scale):
    """RFC 7323, 2.4: rounding to the window field's unit must not move the edge on and on."""
    d = dialogue(rcvbuf=100_000, window_scale=scale, packets=4096, delayed_ack_us=0)
    d.open_passive(wscale=0)
    d.strict = False
    at, refused = 0, 0
    for _ in range(2000):
        d.stack.input(d.build(TCP(flags="A", seq=1 + at, ack=1) / (b"x" * 100)))
        d.settle()
        acked = d.drain()[-1][TCP].ack - 1
        refused += acked == at
        at = acked
        if refused == 5:
            break
    assert at <= 100_000 + 2 * (1 << scale)
    assert at >= 40_000


def test_in_order_data_evicts_out_of_order_data(dialogue):
    """The hole is wide, the pool too small for both: what is beyond it goes, and comes again."""
    d = dialogue(packets=28, rcvbuf=65_535, delayed_ack_us=0)
    c = d.open_passive()
    data = pattern(0, 44 * 1460)
    d.strict = False

    def send(first, last):
        for i in range(first, last):
            d.stack.input(
                d.build(TCP(flags="A", seq=1 + 1460 * i, ack=1) / data[1460 * i : 1460 * (i + 1)])
            )
        return d.drain()[-1][TCP].ack - 1

    send(30, 44)
    assert send(0, 30) >= 30 * 1460
    got = read_all(c)
    assert send(30, 44) == 44 * 1460
    got += read_all(c)
    assert got == data


def test_exhausted_pool_serves_again(dialogue):
    d = dialogue(packets=32, rcvbuf=65_535, delayed_ack_us=0)
    c = d.open_passive()
    d.strict = False
    got, at = b"", 0
    for _ in range(400):
        frame = d.build(TCP(flags="A", seq=1 + at, ack=1) / pattern(at, 1460))
        d.stack.input(frame)
        packets = d.drain()
        if packets:
            at = packets[-1][TCP].ack - 1
        if len(got) + 30_000 < at or not packets:
            got += read_all(c)
    got += read_all(c)
    d.ignore(until=d.now + 100)
    assert len(got) >= 100_000
    assert got == pattern(0, len(got))


def test_out_of_order_data_is_dropped_first(dialogue):
    """Holes of one connection must not starve the stream of another."""
    d = dialogue(packets=48, rcvbuf=65_535, max_connections=8, delayed_ack_us=0)
    one, other = accept_two(d)
    for i in range(60):
        d.stack.input(d.build(TCP(sport=5001, flags="A", seq=1001 + 700 * i, ack=1) / (b"h" * 500)))
    d.ignore()
    got, at = b"", 0
    for _ in range(60):
        d.stack.input(d.build(TCP(sport=5002, flags="A", seq=1 + at, ack=1) / pattern(at, 1000)))
        mine = [p for p in d.drain() if p[TCP].dport == 5002]
        at = mine[-1][TCP].ack - 1 if mine else at
        got += read_all(other)
    assert got == pattern(0, 60_000)
    assert one.error() == 0


def test_memory_shortage_advertises_zero_window(dialogue):
    """Other connections use all the memory. The zero window shows the peer that this host is alive,
    and its retransmission is accepted as soon as there is memory."""
    d = dialogue(packets=32, rcvbuf=65_535, max_connections=8, delayed_ack_us=0)
    one, other = accept_two(d)
    for i in range(44):
        d.stack.input(d.build(TCP(sport=5001, flags="A", seq=1 + 1460 * i, ack=1) / (b"x" * 1460)))
    d.ignore()

    def answer():
        data = pattern(0, 1460)
        d.stack.input(d.build(TCP(sport=5002, flags="A", seq=1, ack=1) / data))
        (ack,) = (p for p in d.drain() if p[TCP].dport == 5002)
        return ack[TCP].ack, ack[TCP].window

    for _ in range(3):
        assert answer() == (1, 0)
    read_all(one)
    d.ignore()
    acked, window = answer()
    assert acked == 1461 and window > 0
    assert read_all(other) == pattern(0, 1460)


def test_zero_window_with_sack_prevents_user_timeout(dialogue):
    """It is answered that there is no room, with what has arrived out of order: beyond any user
    timeout."""
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(sack=True)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000)
    c.send(b"x" * 2920)
    d.strict = False
    d.ignore()
    for _ in range(40):
        sack = [("NOP", None), ("NOP", None), ("SAck", (1461, 2921))]
        d.send(TCP(flags="A", seq=1, ack=1, window=0, options=sack))
        d.ignore(until=d.now + 100)
    assert c.error() == 0


@pytest.mark.parametrize("seed", range(4))
def test_transfers_complete_with_tiny_packet_pool(wire, seed):
    config = {"packets": 24, "rcvbuf": 60_000, "sndbuf": 60_000, "max_connections": 16,
              "rto_min_us": 5000, "delayed_ack_us": 1000}  # fmt: skip
    a = make_stack(address="192.0.2.1", **config)
    b = make_stack(address="192.0.2.2", seed=(3, 4), **config)
    w = wire(a, b, impair=Impairment(drop=0.02, reorder=0.05, seed=seed))
    pairs = [connect_pair(w, 6000 + i) for i in range(4)]
    apps = [Transfer(c, s, 40_000) for c, s in pairs] + [Transfer(s, c, 40_000) for c, s in pairs]
    w.run(apps, limit_s=2000)


def test_acked_data_frees_packet_buffers(dialogue):
    """The buffers are free while the connection goes on, and not before the acknowledgement."""
    d = dialogue()
    c = d.open_passive()
    c.send(b"x" * 14_600)
    assert len(d.drain()) == 10
    used = d.stack.counters()["packets_used"]
    d.send(TCP(flags="A", seq=1, ack=1 + 7300))
    assert 0 < d.stack.counters()["packets_used"] <= used / 2 + 1
    d.send(TCP(flags="A", seq=1, ack=1 + 14_600))
    assert d.stack.counters().get("packets_used", 0) == 0


def test_closed_connection_frees_packet_buffers(dialogue):
    """Over and over: unread data, unsent data, holes; reset or close; the pool stays whole."""
    d = dialogue(packets=40, max_connections=8)
    d.strict = False
    for round_ in range(60):
        d.forget(peer_iss=0x10000000 + round_ * 1_000_000)
        d.peer_port = 10_000 + round_
        c = d.open_passive(window=0)
        c.send(b"x" * 20_000)
        for at in (1, 3001, 6001, 9001):
            d.send(TCP(flags="A", seq=at, ack=1) / (b"y" * 1000))
        if round_ % 3 == 0:
            d.send(TCP(flags="R", seq=1001))
        c.close()
        d.ignore()
    c = d.open_passive(port=81)
    d.peer_port = 30_000
    data = pattern(0, 20_000)
    c.send(data)
    assert d.drain()
