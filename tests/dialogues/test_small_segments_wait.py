# SPDX-License-Identifier: Apache-2.0
"""Small segments wait for an acknowledgement, unless told not to (RFC 9293, 3.7.4)."""

from __future__ import annotations

import socket

from scapy.layers.inet import TCP


def test_the_second_small_segment_waits(either):
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=20)
    c.send(b"a")
    d.expect(TCP(seq=1) / b"a")
    c.send(b"b")
    c.send(b"c")
    d.silence(during=10)
    d.send(TCP(seq=1, ack=2))
    d.expect(TCP(seq=2) / b"bc")


def test_nodelay(either):
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=20)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    c.send(b"a")
    d.expect(TCP(seq=1) / b"a")
    c.send(b"b")
    d.expect(TCP(seq=2) / b"b")


def test_cork(either):
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=20)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    c.send(b"a")
    d.silence(during=50)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    d.expect(TCP(seq=1) / b"a")
