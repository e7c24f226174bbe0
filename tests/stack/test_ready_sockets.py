# SPDX-License-Identifier: Apache-2.0
"""harp_tcp_ready: lists each ready socket once, without a poll of all sockets."""

from __future__ import annotations

import socket

import pytest
from scapy.layers.inet import TCP


def test_no_socket_is_ready_without_events(dialogue):
    d = dialogue()
    d.listen(80)
    d.connect(80)
    d.expect(TCP(flags="S"))
    assert d.stack.ready() == []


def test_ready_reports_each_connection_event_once(dialogue):
    d = dialogue(delayed_ack_us=0)
    c = d.connect(80)
    d.expect(TCP(flags="S"))
    d.send(TCP(flags="SA", seq=0, ack=1))
    d.expect(TCP(flags="A"))
    assert d.stack.ready() == [c.number]
    assert d.stack.ready() == []
    for seq in (1, 2):
        d.send(TCP(flags="A", seq=seq, ack=1) / b"x")
        d.expect(TCP(flags="A", ack=seq + 1))
    assert d.stack.ready() == [c.number]  # once for both
    d.send(TCP(flags="FA", seq=3, ack=1))
    d.expect(TCP(flags="A", ack=4))
    assert d.stack.ready() == [c.number]
    d.send(TCP(flags="R", seq=4))
    assert d.stack.ready() == [c.number]
    c.close()
    assert d.stack.ready() == []


def test_ready_reports_listener_then_accepted_socket(dialogue):
    d = dialogue(delayed_ack_us=0)
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA"))
    d.send(TCP(flags="PA", seq=1, ack=1) / b"early")
    d.expect(TCP(flags="A", ack=6))
    assert d.stack.ready() == [listener.number]  # the other's number nobody knows yet
    c = d.accept(listener)
    assert d.stack.ready() == [c.number]


def test_ready_keeps_event_order(dialogue):
    d = dialogue(delayed_ack_us=0)
    listener = d.listen(80)
    numbers = {}
    for port in (1001, 1002, 1003):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
        numbers[port] = d.accept(listener)
    d.stack.ready()
    for port in (1002, 1003, 1001, 1002):
        d.send(TCP(sport=port, flags="A", ack=1) / b"x")
        d.expect(TCP(dport=port, flags="A"))
    numbers[1003].close()
    d.ignore()
    assert d.stack.ready(1) == [numbers[1002].number]
    assert d.stack.ready() == [numbers[1001].number]


def test_ready_reports_send_buffer_space(dialogue):
    d = dialogue(sndbuf=9000)
    c = d.open_passive(mss=1000)
    d.stack.ready()
    with pytest.raises(BlockingIOError):
        while True:
            c.send(b"x" * 1000)
    d.drain()
    d.send(TCP(ack=1001))
    d.drain()
    assert d.stack.ready() == []  # a ninth of the buffer is not worth waking up for
    d.send(TCP(ack=8001))
    d.drain()
    assert d.stack.ready() == [c.number]
    d.send(TCP(ack=9001))
    d.drain()
    assert d.stack.ready() == []  # it was writable before


def test_ready_reports_freed_packet_memory(dialogue):
    """Others hold the memory that a socket needs: it is told when they give it back."""
    d = dialogue(packets=32, sndbuf=1 << 20, delayed_ack_us=0)
    listener = d.listen(80)
    greedy, hungry = [], []
    for port, kept in ((1001, greedy), (1002, hungry)):
        d.send(TCP(sport=port, flags="S", seq=0, options=[("MSS", 1460)]))
        d.expect(TCP(dport=port, flags="SA"))
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
        kept.append(d.accept(listener))
    d.stack.ready()
    with pytest.raises(BlockingIOError):
        while True:
            greedy[0].send(b"x" * 2000)
    with pytest.raises(BlockingIOError):
        hungry[0].send(b"x")
    assert not hungry[0].poll() & 4  # POLLOUT
    sent = max(p[TCP].seq + len(bytes(p[TCP].payload)) for p in d.drain())
    assert d.stack.ready() == []
    d.send(TCP(sport=1001, ack=sent))
    d.drain()
    assert hungry[0].number in d.stack.ready()
    assert hungry[0].send(b"x") == 1


def test_ready_waits_for_packet_memory(dialogue):
    """Others hold the packet memory when a socket has room again: it is ready once
    the memory is back."""
    d = dialogue(packets=32, sndbuf=20_000, delayed_ack_us=0)
    listener = d.listen(80)
    socks = []
    for port in (1001, 1002):
        d.send(TCP(sport=port, flags="S", seq=0, options=[("MSS", 1000)]))
        d.expect(TCP(dport=port, flags="SA"))
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
        socks.append(d.accept(listener))
    full, greedy = socks
    greedy.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    d.stack.ready()
    for sock in socks:
        with pytest.raises(BlockingIOError):
            while True:
                sock.send(b"x" * 1000)
    d.strict = False
    for at in range(15):
        d.send(TCP(sport=1002, seq=1 + 1000 * at, ack=1) / (b"y" * 1000))
    d.send(TCP(sport=1001, ack=9001))
    d.ignore()
    assert not full.poll() & 4  # POLLOUT
    assert full.number not in d.stack.ready()
    assert len(greedy.recv(65_536)) == 15_000
    assert full.poll() & 4
    assert full.number in d.stack.ready()


def test_socket_without_references_is_not_writable(dialogue):
    """A connection refers to at most 4096 packet buffers, whatever SO_SNDBUF says."""
    d = dialogue(packets=8192, sndbuf=1 << 24, delayed_ack_us=0)
    c = d.open_passive()
    d.stack.ready()
    with pytest.raises(BlockingIOError):
        while True:
            c.send(b"x" * 65_536)
    assert not c.poll() & 4  # POLLOUT
    d.ignore()
    assert d.stack.ready() == []
    d.send(TCP(ack=14_601))
    d.ignore()
    assert d.stack.ready() == [c.number]
    assert c.poll() & 4
    assert c.send(b"x")


def test_ready_reports_shutdown(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.stack.ready()
    c.shutdown(socket.SHUT_RDWR)
    assert d.stack.ready() == [c.number]


def test_ready_reports_no_event_of_closed_socket(dialogue):
    """Its connection goes on alone until its last bytes are acknowledged."""
    d = dialogue()
    c = d.open_passive(mss=1000, window=2000)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with pytest.raises(BlockingIOError):
        while True:
            c.send(b"x" * 1000)
    d.stack.ready()
    c.close()
    assert d.stack.ready() == []
    for _ in range(4):
        d.drain()
        d.send(TCP(flags="A", seq=1, ack=2001, window=8000))
    d.ignore()
    assert d.stack.ready() == []
    again = d.connect(81)
    d.ignore()
    assert d.stack.ready() in ([], [again.number])
    assert d.stack.ready() == []
