# SPDX-License-Identifier: Apache-2.0
"""Transmit records: all connections share them, and each output call takes one."""

from __future__ import annotations

import socket

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import payload
from harp.testing.flights import MSS
from harp.testing.wire import pattern

CONNECTIONS = 8


def open_all(d):
    """All connections, with TCP_NODELAY. Connection i belongs to the peer's port 1000 + i."""
    socks = []
    for i in range(CONNECTIONS):
        d.peer_port = 1000 + i
        socks.append(d.open_passive(rtt=20))
        socks[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return socks


def send_bytes(sock, count):
    """Sends single bytes, each in a segment of its own."""
    for _ in range(count):
        sock.send(b"x")


def use_all_records(socks):
    """The first connection leaves some, and the others take the last."""
    send_bytes(socks[0], 100)
    for sock in socks[1:7]:
        sock.send(b"x")


@pytest.fixture
def scarce(dialogue):
    """104 records for 8 connections: two places are for active opens."""
    return dialogue(packets=64, max_connections=CONNECTIONS + 2, initial_window=100)


def test_missing_records_stop_no_timer(dialogue):
    """The peer acknowledges nothing, and the records run out: the next deadline must not stay at
    the present."""
    d = dialogue(packets=64, max_connections=1)
    c = d.open_passive(rtt=20)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    send_bytes(c, 100)
    d.ignore()
    d.run(d.now + 10_000)
    assert c.error() == 0


def test_silent_peer_leaves_records_to_others(scarce):
    d = scarce
    socks = open_all(d)
    send_bytes(socks[0], 200)
    d.ignore()
    socks[1].send(b"other")
    assert [payload(p) for p in d.drain()] == [b"other"]


@pytest.mark.parametrize("what", ["data", "fin"])
def test_new_data_waits_for_free_record(scarce, what):
    d = scarce
    socks = open_all(d)
    use_all_records(socks)
    d.ignore()
    if what == "data":
        socks[7].send(b"data")
    else:
        socks[7].shutdown(socket.SHUT_WR)
    d.silence(during=10)
    d.strict = False
    d.send(TCP(sport=1001, ack=2))
    sent = [p for p in d.drain(until=d.now + 2000) if p[TCP].dport == 1007]
    assert sent
    assert payload(sent[0]) == (b"data" if what == "data" else b"")
    assert sent[0][TCP].flags.F == (what == "fin")


def test_fin_without_record_is_no_unanswered_probe(scarce):
    """The owner has closed. Attempts that could not be sent must not count against the peer."""
    d = scarce
    socks = open_all(d)
    use_all_records(socks)
    d.ignore()
    socks[7].close()
    d.strict = False
    keep = d.now + 300_000
    while d.now < keep:
        d.drain(until=d.now + 1000)
        if all(sock.error() for sock in socks[:7]):
            break
    d.send(TCP(sport=1001, ack=2))
    sent = [p for p in d.drain(until=d.now + 2000) if p[TCP].dport == 1007]
    assert sent and sent[0][TCP].flags.F and not sent[0][TCP].flags.R


def test_recovery_without_free_record(scarce):
    """A lost record is longer than the loss window, and none is free to split it."""
    d = scarce
    socks = open_all(d)
    stream = pattern(0, 5 * MSS)
    socks[0].send(stream)
    use_all_records(socks)
    d.ignore()
    got, at = b"", 1
    d.strict = False
    while len(got) < 5 * MSS and d.now < 20_000:
        for p in d.drain(until=d.now + 100):
            if p[TCP].dport == 1000 and p[TCP].seq == at:
                got += payload(p)
                at += len(payload(p))
                d.send(TCP(sport=1000, ack=at))
    assert got[: 5 * MSS] == stream
