# SPDX-License-Identifier: Apache-2.0
"""Small segments wait for an acknowledgement, unless told not to (RFC 9293, 3.7.4)."""

from __future__ import annotations

import socket

from scapy.layers.inet import TCP

from harp.testing.flights import MSS, seq
from harp.testing.wire import pattern


def test_second_small_segment_waits_for_ack(either):
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=20)
    c.send(b"a")
    d.expect(TCP(seq=1) / b"a")
    c.send(b"b")
    c.send(b"c")
    d.silence(during=10)
    d.send(TCP(seq=1, ack=2))
    d.expect(TCP(seq=2) / b"bc")


def test_final_short_segment_is_sent_at_once_by_minshall(either):
    """Minshall's modification: only behind an earlier short segment does it wait."""
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=20)
    c.send(pattern(0, 2 * MSS + 100))
    d.expect(TCP(seq=seq(0)), length=MSS)
    d.expect(TCP(seq=seq(1)), length=MSS)
    d.expect(TCP(seq=seq(2)), length=100)
    c.send(pattern(0, MSS + 50))
    d.expect(TCP(seq=seq(2) + 100), length=MSS)
    d.silence(during=10)
    d.send(TCP(seq=1, ack=seq(2)))  # the short one is still on its way
    d.silence(during=10)
    d.send(TCP(seq=1, ack=seq(2) + 100))
    d.expect(TCP(seq=seq(3) + 100), length=50)


def test_nodelay_sends_small_segments_at_once(either):
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=20)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    c.send(b"a")
    d.expect(TCP(seq=1) / b"a")
    c.send(b"b")
    d.expect(TCP(seq=2) / b"b")


def test_nodelay_flushes_corked_data(either):
    """TCP_NODELAY releases the queued data. TCP_CORK delays later data again."""
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=20)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    c.send(b"a")
    d.silence(during=30)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    d.expect(TCP(seq=1) / b"a")
    c.send(b"b")
    d.silence(during=30)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    d.expect(TCP(seq=2) / b"b")


def test_cork_holds_partial_segment(either):
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=20)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    c.send(b"a")
    d.silence(during=50)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    d.expect(TCP(seq=1) / b"a")
