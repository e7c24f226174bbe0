# SPDX-License-Identifier: Apache-2.0
"""Listeners: half-open connections and the accept queue."""

from __future__ import annotations

import select

import pytest
from scapy.layers.inet import TCP

IN = select.POLLIN


def test_backlog_bounds_accept_queue(dialogue):
    d = dialogue(max_connections=64)
    listener = d.listen(80, backlog=3)
    d.strict = False
    for port in range(1001, 1021):
        d.send(TCP(sport=port, flags="S", seq=0))
        if any(int(p[TCP].flags) == 0x12 for p in d.drain()):
            d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    d.ignore()
    accepted = 0
    with pytest.raises(BlockingIOError):
        while True:
            listener.accept()
            accepted += 1
    assert 3 <= accepted <= 5


def test_listener_serves_again_after_full_backlog(dialogue):
    d = dialogue(max_connections=64)
    listener = d.listen(80, backlog=1)
    d.strict = False
    for port in range(1001, 1011):
        d.send(TCP(sport=port, flags="S", seq=0))
        if any(int(p[TCP].flags) == 0x12 for p in d.drain()):
            d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    while listener.poll() & IN:
        listener.accept()[0].close()
    d.ignore()
    d.send(TCP(sport=2000, flags="S", seq=0))
    d.expect(TCP(dport=2000, flags="SA"))


def test_half_open_connections_are_bounded_by_backlog(dialogue):
    """SYNs beyond the backlog get a cookie and no state: the SYN-ACK is not retransmitted."""
    d = dialogue(max_connections=64, rto_initial_us=1_000_000)
    d.listen(80, backlog=4)
    d.strict = False
    for port in range(1001, 1051):
        d.send(TCP(sport=port, flags="S", seq=0))
    d.ignore()
    again = {p[TCP].dport for p in d.drain(until=d.now + 1500)}
    assert again == {1001, 1002, 1003, 1004}


def test_listener_serves_after_syn_flood_times_out(dialogue):
    """A SYN flood: after the flood has timed out, the listener serves."""
    d = dialogue(max_connections=64)
    d.listen(80, backlog=4)
    d.strict = False
    for port in range(1001, 1201):
        d.send(TCP(sport=port, flags="S", seq=0))
    d.ignore(until=d.now + 300_000)
    d.send(TCP(sport=2000, flags="S", seq=0))
    d.expect(TCP(dport=2000, flags="SA"))


def test_oldest_half_open_connection_is_evicted_after_1_s(dialogue):
    """A new SYN replaces the oldest half-open connection once that is 1 s old."""
    d = dialogue(max_connections=64, rto_initial_us=3_000_000)
    listener = d.listen(80, backlog=4)
    for port in range(1001, 1005):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
    d.send(TCP(sport=2001, flags="S", seq=0), at=d.now + 1005)
    d.expect(TCP(dport=2001, flags="SA"))
    # The oldest one is over, though no reset says so to a peer that may be slow; others are not.
    for port in (1001, 1002, 1004, 2001):
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
        d.silence()
    opened = [listener.accept()[1][1] for _ in range(3)]
    assert opened == [1002, 1004, 2001]
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_half_open_timeout_sends_no_reset(dialogue):
    """As Linux: the address may be forged, and its host has sent no SYN."""
    d = dialogue()
    d.listen(80)
    d.send(TCP(flags="S", seq=0))
    for wait in (0, 1, 2, 4, 8, 16, 32):
        d.expect(TCP(flags="SA", seq=0, ack=1), within=1000 * wait + 100)
    d.silence(during=300_000)
    assert d.stack.counters().get("tcp_connections", 0) == 0
    assert d.stack.counters()["tcp_timeouts"] == 1


def test_half_open_connections_end_in_any_order(dialogue):
    """The list of those under way survives that each of them completes, resets or gives up."""
    d = dialogue(max_connections=64)
    listener = d.listen(80, backlog=6)
    for port in range(1001, 1007):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
    for port in (1003, 1001, 1006):
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    d.send(TCP(sport=1004, flags="R", seq=1))
    d.ignore()
    for _ in range(3):
        listener.accept()
    for port in range(2001, 2005):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
    d.send(TCP(sport=2005, flags="S", seq=0))
    d.expect(TCP(dport=2005, flags="SA"))  # a cookie
    d.send(TCP(sport=2001, flags="A", seq=1, ack=1))
    for _ in range(2):
        d.send(TCP(sport=2006, flags="S", seq=0))
        d.expect(TCP(dport=2006, flags="SA"))
    assert all(p[TCP].dport != 2005 for p in d.drain(until=d.now + 1500))


# Connections that wait to be accepted (what Linux does as well: tests/dialogues)


def test_peer_with_syn_cookie_takes_no_memory(dialogue):
    d = dialogue(max_connections=64)
    listener = d.listen(80, backlog=1)
    for port in (1001, 1002, 1003):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
        if port == 1001:
            d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    d.send(TCP(sport=1002, flags="A", seq=1, ack=1))
    d.send(TCP(sport=1003, flags="A", seq=1, ack=1))
    d.silence()
    assert d.stack.counters()["tcp_connections"] == 2
    d.accept(listener)
    d.send(TCP(sport=1003, flags="PA", seq=1, ack=1) / b"again")
    d.expect(TCP(dport=1003, flags="A", ack=6), within=50)
    d.accept(listener)
    assert d.accept(listener).recv(10) == b"again"


def test_completed_handshake_is_not_evicted(dialogue):
    """A peer that has completed its handshake, and only waits for the queue, keeps its place."""
    d = dialogue(max_connections=64, rto_initial_us=3_000_000)
    listener = d.listen(80, backlog=2)
    for port in (1001, 1002, 1003, 2001):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
        if port < 1003:
            d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    for port in (1003, 2001):
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    d.accept(listener)
    d.send(TCP(sport=3001, flags="S", seq=0))
    d.expect(TCP(dport=3001, flags="SA"))
    d.send(TCP(sport=3002, flags="S", seq=0), at=d.now + 1005)
    d.expect(TCP(dport=3002, flags="SA"))
    d.send(TCP(sport=2001, flags="A", seq=1, ack=1))
    d.silence()
    for _ in range(3):
        d.accept(listener)


def test_wait_for_accept_queue_is_not_an_rtt_sample(dialogue):
    d = dialogue()
    listener = d.listen(80, backlog=2)
    for port in (1001, 1002, 1003, 1004):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
        if port < 1003:
            d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    for port in (1003, 1004):
        d.send(TCP(sport=port, flags="A", seq=1, ack=1), at=d.now + 10)
    d.accept(listener)
    d.send(TCP(sport=1004, flags="A", seq=1, ack=1), at=d.now + 900)
    waited = [d.accept(listener) for _ in range(3)][-1]
    assert waited.tcp_info()["rtt"] == pytest.approx(20_000, rel=0.1)


def test_connection_reset_in_accept_queue_is_accepted(dialogue):
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(sport=1001, flags="S", seq=0))
    d.expect(TCP(dport=1001, flags="SA"))
    d.send(TCP(sport=1001, flags="PA", seq=1, ack=1) / b"last words")
    d.ignore(until=d.now + 50)
    d.send(TCP(sport=1001, flags="R", seq=11))
    connection, address = listener.accept()
    assert address == (d.peer_address, 1001)
    assert connection.recv(100) == b"last words"
    with pytest.raises(ConnectionResetError):
        connection.recv(100)
