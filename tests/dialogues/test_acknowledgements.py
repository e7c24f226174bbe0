# SPDX-License-Identifier: Apache-2.0
"""When data is acknowledged (RFC 5681, 4.2; RFC 1122, 4.2.3.2)."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP


def test_second_full_segment_is_acked_at_once(either):
    """Linux begins by acknowledging each segment, to let the peer's window grow; so only this is
    common: the second one never waits."""
    d = either()
    d.open_passive()
    d.send(TCP(seq=1, ack=1) / (b"a" * 1460))
    d.strict = False
    d.send(TCP(seq=1461, ack=1) / (b"b" * 1460))
    assert d.drain()[-1][TCP].ack == 2921


def after_large_segments(either):
    """A dialogue whose peer has sent segments of 1460 bytes, the socket, and the next number."""
    d = either()
    c = d.open_passive()
    d.strict = False
    for i in range(40):  # Linux acknowledges each of the first ones
        d.send(TCP(seq=1 + 1460 * i, ack=1) / (b"a" * 1460))
        if i % 2:
            d.expect(TCP(flags="A"))
            assert len(c.recv(10_000)) == 2920
    d.ignore(d.now + 100)
    return d, c, 1 + 1460 * 40


@pytest.mark.parametrize(("size", "flags"), [(600, "PA"), (300, "A")])
def test_ack_threshold_follows_smaller_segment_size(either, size, flags):
    """The path MTU has shrunk: two segments of one size show it. Segments with PSH may be short
    writes, so they count only if they are as large as any path can carry."""
    d, c, seq = after_large_segments(either)
    for i in range(8):
        d.send(TCP(flags=flags, seq=seq, ack=1) / (b"b" * size))
        d.send(TCP(flags=flags, seq=seq + size, ack=1) / (b"c" * size))
        seq += 2 * size
        assert len(c.recv(10_000)) == 2 * size  # Linux waits for that, as it tells of the window
        acks = [p[TCP].ack for p in d.drain()]
        assert i == 0 or acks[-1] >= seq - size


def test_more_than_a_full_segment_is_acknowledged_at_once(either):
    """However it is cut: what carries the peer's own blocks has less room for data."""
    d, _, seq = after_large_segments(either)
    for size in (1000, 800, 1400, 700):
        d.send(TCP(flags="PA", seq=seq, ack=1) / (b"b" * size))
        seq += size
        if size < 1000:
            d.expect(TCP(flags="A", ack=seq))


def test_delayed_ack_fires_within_500_ms(either):
    """RFC 1122: within half a second."""
    d = either()
    d.open_passive()
    d.send(TCP(seq=1, ack=1) / b"a")
    d.expect(TCP(flags="A", seq=1, ack=2), within=500)


def test_pure_ack_is_not_acked(either):
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
