# SPDX-License-Identifier: Apache-2.0
"""When data is acknowledged (RFC 5681, 4.2; RFC 1122, 4.2.3.2)."""

from __future__ import annotations

from scapy.layers.inet import TCP


def test_two_full_segments_are_acknowledged_at_once(either):
    """Linux begins by acknowledging each segment, to let the peer's window grow; so only this is
    common: the second one never waits."""
    d = either()
    d.open_passive()
    d.send(TCP(seq=1, ack=1) / (b"a" * 1460))
    d.strict = False
    d.send(TCP(seq=1461, ack=1) / (b"b" * 1460))
    assert d.drain()[-1][TCP].ack == 2921


def test_a_lone_segment_is_acknowledged_soon(either):
    """RFC 1122: within half a second."""
    d = either()
    d.open_passive()
    d.send(TCP(seq=1, ack=1) / b"a")
    d.expect(TCP(flags="A", seq=1, ack=2), within=500)


def test_an_acknowledgement_is_not_acknowledged(either):
    d = either()
    d.open_passive()
    for _ in range(3):
        d.send(TCP(flags="A", seq=1, ack=1))
    d.silence(during=100)


def test_a_keepalive_is_answered(either):
    """RFC 9293, 3.8.4: a number below the window, with or without a byte."""
    d = either()
    d.open_passive()
    d.send(TCP(flags="A", seq=0, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=1))
