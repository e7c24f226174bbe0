# SPDX-License-Identifier: Apache-2.0
"""Small segments: Nagle's algorithm (RFC 9293, 3.7.4), TCP_NODELAY, TCP_CORK."""

from __future__ import annotations

import socket

from scapy.layers.inet import TCP

from harp.testing.dialogue import payload
from harp.testing.wire import pattern

MSS = 1460


def nodelay(sock, on=1):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, on)


def cork(sock, on=1):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, on)


def test_first_small_segment_is_sent_at_once(dialogue):
    d = dialogue()
    c = d.open_passive()
    c.send(b"a")
    d.expect(TCP(flags="PA", seq=1) / b"a")


def test_nagle_coalesces_small_writes_until_ack(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=50)
    c.send(b"a")
    d.expect(TCP(seq=1) / b"a")
    for piece in (b"b", b"c", b"d"):
        c.send(piece)
        d.silence(during=5)
    d.send(TCP(seq=1, ack=2))
    d.expect(TCP(flags="PA", seq=2) / b"bcd")


def test_full_segment_is_sent_at_once(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=50)
    c.send(b"a")
    d.expect(TCP(seq=1) / b"a")
    c.send(b"b" * 700)
    d.silence(during=5)
    c.send(b"c" * (MSS - 700) + b"d")
    d.expect(TCP(seq=2) / (b"b" * 700 + b"c" * (MSS - 700)))
    d.silence(during=5)
    d.send(TCP(seq=1, ack=2 + MSS))
    d.expect(TCP(seq=2 + MSS) / b"d")


def test_nagle_holds_short_tail_behind_short_segment(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=50)
    c.send(b"a")
    d.expect(TCP(seq=1) / b"a")
    c.send(pattern(0, 2 * MSS + 100))
    d.expect(TCP(seq=2), length=MSS)
    d.expect(TCP(seq=2 + MSS), length=MSS)
    d.silence(during=5)
    d.send(TCP(seq=1, ack=2))
    d.expect(TCP(flags="PA", seq=2 + 2 * MSS), length=100)


def test_nodelay_under_cork_pushes_when_window_opens(dialogue):
    """TCP_NODELAY under TCP_CORK lets go what is there, as soon as it may go."""
    d = dialogue()
    c = d.open_passive(rtt=50, window=0)
    cork(c)
    c.send(b"held")
    nodelay(c)
    d.silence(during=20)
    d.send(TCP(flags="A", seq=1, ack=1, window=1000))
    d.expect(TCP(flags="PA", seq=1) / b"held")


def test_nodelay_sends_small_segments_at_once(dialogue):
    """RFC 9293, 3.7.4 (MUST-17): an application can switch the algorithm off."""
    d = dialogue()
    c = d.open_passive(rtt=50)
    nodelay(c)
    for i, piece in enumerate((b"a", b"b", b"c")):
        c.send(piece)
        d.expect(TCP(flags="PA", seq=1 + i) / piece)
    c.send(pattern(0, MSS + 10))
    d.expect(TCP(seq=4), length=MSS)
    d.expect(TCP(flags="PA", seq=4 + MSS), length=10)


def test_nodelay_flushes_held_data(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=50)
    c.send(b"a")
    d.expect(TCP(seq=1) / b"a")
    c.send(b"b")
    d.silence(during=5)
    nodelay(c)
    d.expect(TCP(seq=2) / b"b")
    assert c.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_nodelay_can_be_switched_off(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=50)
    nodelay(c)
    nodelay(c, 0)
    assert c.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
    c.send(b"a")
    d.expect(TCP(seq=1) / b"a")
    c.send(b"b")
    d.silence(during=5)


def test_cork_holds_partial_segment_when_idle(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=50)
    cork(c)
    c.send(b"header ")
    d.silence(during=20)
    c.send(b"body")
    d.silence(during=20)
    cork(c, 0)
    d.expect(TCP(flags="PA", seq=1) / b"header body")


def test_cork_sends_full_segments(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=50)
    cork(c)
    c.send(pattern(0, 2 * MSS + 5))
    d.expect(TCP(seq=1), length=MSS)
    d.expect(TCP(seq=1 + MSS), length=MSS)
    d.silence(during=20)
    d.send(TCP(seq=1, ack=1 + 2 * MSS))
    d.silence(during=20)
    cork(c, 0)
    d.expect(TCP(flags="PA", seq=1 + 2 * MSS), length=5)


def test_fin_flushes_corked_data(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=50)
    cork(c)
    c.send(b"last words")
    d.silence(during=20)
    c.shutdown(socket.SHUT_WR)
    d.expect(TCP(flags="FPA", seq=1) / b"last words")


def test_last_segment_carries_psh(dialogue):
    """RFC 9293, 3.9.1.2 (MUST-61): the last buffered segment carries PSH."""
    d = dialogue()
    c = d.open_passive(rtt=50)
    c.send(pattern(0, 3 * MSS))
    packets = [p for p in d.drain() if payload(p)]
    assert len(packets) == 3
    assert int(packets[-1][TCP].flags) & 0x08
