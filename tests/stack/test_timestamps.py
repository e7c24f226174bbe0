# SPDX-License-Identifier: Apache-2.0
"""Timestamps: echo, round-trip times, and protection against old segments (RFC 7323)."""

from __future__ import annotations

import errno

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import option
from harp.testing.flights import timestamp_option
from harp.testing.tcp_info import state_name

DAY_MS = 86_400_000


def test_every_segment_carries_timestamps(dialogue):
    d = dialogue(timestamps=1)
    c = d.open_passive(timestamps=True)
    c.send(b"data")
    assert option(d.expect(TCP(seq=1) / b"data"), "Timestamp") is not None
    d.send(TCP(seq=1, ack=5) / b"answer")
    assert option(d.expect(TCP(flags="A", ack=7), within=500), "Timestamp") is not None
    c.shutdown(1)
    d.settle()
    assert option(d.expect(TCP(flags="FA")), "Timestamp") is not None


def test_ack_echoes_tsval(dialogue):
    d = dialogue(timestamps=1, delayed_ack_us=0)
    d.open_passive(timestamps=True)
    d.send(TCP(seq=1, ack=1, options=timestamp_option(6_000_000, 1)) / b"x")
    assert option(d.expect(TCP(ack=2)), "Timestamp")[1] == 6_000_000
    d.send(TCP(seq=2, ack=1, options=timestamp_option(6_000_007, 1)) / b"y")
    assert option(d.expect(TCP(ack=3)), "Timestamp")[1] == 6_000_007


def test_delayed_ack_echoes_earliest_tsval(dialogue):
    """RFC 7323, 4.3 (A): so that the peer measures the delay too."""
    d = dialogue(timestamps=1)
    d.open_passive(timestamps=True)
    d.send(TCP(seq=1, ack=1, options=timestamp_option(6_000_000, 1)) / (b"x" * 1448))
    d.silence()
    d.send(TCP(seq=1449, ack=1, options=timestamp_option(6_000_010, 1)) / (b"y" * 1448))
    assert option(d.expect(TCP(ack=2897)), "Timestamp")[1] == 6_000_000


def test_ack_beyond_hole_echoes_last_in_order_tsval(dialogue):
    """RFC 7323, 4.3 (B)."""
    d = dialogue(timestamps=1, delayed_ack_us=0)
    d.open_passive(timestamps=True)
    d.send(TCP(seq=1, ack=1, options=timestamp_option(6_000_000, 1)) / b"one")
    d.expect(TCP(ack=4))
    d.send(TCP(seq=7, ack=1, options=timestamp_option(6_000_020, 1)) / b"three")
    assert option(d.expect(TCP(ack=4)), "Timestamp")[1] == 6_000_000


def test_ack_of_filled_hole_echoes_tsval_of_filler(dialogue):
    """RFC 7323, 4.3 (C)."""
    d = dialogue(timestamps=1, delayed_ack_us=0)
    d.open_passive(timestamps=True)
    d.send(TCP(seq=4, ack=1, options=timestamp_option(6_000_020, 1)) / b"two")
    d.ignore()
    d.send(TCP(seq=1, ack=1, options=timestamp_option(6_000_030, 1)) / b"one")
    assert option(d.expect(TCP(ack=7)), "Timestamp")[1] == 6_000_030


def test_timestamp_clock_ticks_between_1_ms_and_1_s(dialogue):
    """RFC 7323, 5.4: between 1 ms and 1 s a tick."""
    d = dialogue(timestamps=1, delayed_ack_us=0)
    d.open_passive(timestamps=True)
    d.send(TCP(seq=1, ack=1) / b"x")
    first = option(d.expect(TCP(ack=2)), "Timestamp")[0]
    d.run(d.now + 10_000)
    d.send(TCP(seq=2, ack=1) / b"y")
    second = option(d.expect(TCP(ack=3)), "Timestamp")[0]
    assert 10 <= (second - first) % 2**32 <= 10_000


def test_paws_drops_old_segment(dialogue):
    d = dialogue(timestamps=1, delayed_ack_us=0)
    c = d.open_passive(timestamps=True)
    d.send(TCP(seq=1, ack=1, options=timestamp_option(6_000_000, 1)) / b"new")
    d.expect(TCP(ack=4))
    d.send(TCP(seq=4, ack=1, options=timestamp_option(5_999_999, 1)) / b"old")
    d.expect(TCP(flags="A", ack=4))
    assert c.recv(100) == b"new"
    with pytest.raises(BlockingIOError):
        c.recv(100)


def test_paws_ignores_ack_of_old_segment(dialogue):
    d = dialogue(timestamps=1, delayed_ack_us=0)
    c = d.open_passive(timestamps=True)
    d.send(TCP(seq=1, ack=1, options=timestamp_option(6_000_000, 1)) / b"x")
    d.expect(TCP(ack=2))
    c.send(b"data")
    d.expect(TCP(seq=1) / b"data")
    d.send(TCP(seq=2, ack=5, options=timestamp_option(5_000_000, 1)))
    d.ignore()
    d.expect(TCP(seq=1) / b"data", within=5000)


def test_resets_are_exempt_from_paws(dialogue):
    """RFC 7323, 5.2: a reset counts without timestamps, and with old ones."""
    d = dialogue(timestamps=1, delayed_ack_us=0)
    c = d.open_passive(timestamps=True)
    d.send(TCP(seq=1, ack=1, options=timestamp_option(6_000_000, 1)) / b"x")
    d.expect(TCP(ack=2))
    d.send(TCP(flags="RA", seq=2, ack=1, options=timestamp_option(1, 1)))
    assert c.error() == errno.ECONNRESET


def test_segment_without_negotiated_timestamps_is_dropped(dialogue):
    """RFC 7323, 3.2: once agreed, a segment without them is to be dropped."""
    d = dialogue(timestamps=1, delayed_ack_us=0)
    c = d.open_passive(timestamps=True)
    d.flow().ts_on = False
    d.send(TCP(seq=1, ack=1) / b"bare")
    d.ignore()
    with pytest.raises(BlockingIOError):
        c.recv(100)


def test_peer_timestamp_clock_may_wrap(dialogue):
    d = dialogue(timestamps=1, delayed_ack_us=0)
    c = d.open_passive(timestamps=False)
    assert state_name(c.tcp_info()) == "ESTABLISHED"
    d.forget()
    d.listen(81)
    d.send(TCP(flags="S", seq=0, options=timestamp_option(0xFFFFFFF0, 0)))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1, options=timestamp_option(0xFFFFFFF5, 1)))
    d.send(TCP(seq=1, ack=1, options=timestamp_option(3, 1)) / b"after")
    d.expect(TCP(flags="A", ack=6))
    d.send(TCP(seq=6, ack=1, options=timestamp_option(0xFFFFFFFE, 1)) / b"before")
    d.expect(TCP(flags="A", ack=6))


def test_paws_forgets_ts_recent_after_24_idle_days(dialogue):
    """RFC 7323, 5.5."""
    d = dialogue(timestamps=1, delayed_ack_us=0)
    c = d.open_passive(timestamps=True)
    d.send(TCP(seq=1, ack=1, options=timestamp_option(6_000_000, 1)) / b"x")
    d.expect(TCP(ack=2))
    d.send(TCP(seq=2, ack=1, options=timestamp_option(10, 1)) / b"late", at=d.now + 25 * DAY_MS)
    echo = option(d.expect(TCP(flags="A", ack=6)), "Timestamp")[1]
    assert echo == 10  # the new value replaces the old one, so PAWS protects again
    assert c.recv(100) == b"xlate"


def test_timestamps_give_rtt_samples_of_retransmissions(dialogue):
    """RFC 7323, 4: Karn's rule is not needed where the echo tells which copy arrived."""
    d = dialogue(timestamps=1, rto_min_us=200_000)
    c = d.open_passive(timestamps=True, rtt=50)
    before = c.tcp_info()["rtt"]
    assert 45_000 <= before <= 60_000
    c.send(b"data")
    d.expect(TCP(seq=1) / b"data")
    again = d.expect(TCP(seq=1) / b"data", within=5000)
    stamp = option(again, "Timestamp")[0]
    d.send(TCP(seq=1, ack=5, options=timestamp_option(d.peer_clock() + 100, stamp)), at=d.now + 50)
    after = c.tcp_info()["rtt"]
    assert 40_000 <= after <= 70_000
