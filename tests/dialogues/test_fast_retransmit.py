# SPDX-License-Identifier: Apache-2.0
"""A loss is repaired before the timeout (RFC 5681, 6582, 8985)."""

from __future__ import annotations

from scapy.layers.inet import TCP

from harp.testing.flights import MSS, ack, numbers, send_flight, seq
from harp.testing.wire import pattern


def test_sack_triggers_fast_retransmit_of_hole(either):
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=200)
    send_flight(d, c)
    d.run(d.now + 200)
    d.strict = False
    for end in (2, 3, 4, 5):
        d.send(ack(0, (1, end)))
    d.expect(TCP(seq=seq(0)), length=MSS, within=100)
    assert [i for i in numbers(d.drain()) if i < 5] == []


def test_limited_transmit_sends_one_segment_per_duplicate(either):
    """RFC 5681, 3.2: one for each of the first two, by what has left the network, while the
    congestion window stays as it is."""
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=200)
    c.send(pattern(0, 30 * MSS))
    for i in range(10):
        d.expect(TCP(seq=seq(i)), length=MSS)
    d.run(d.now + 200)
    for end in (2, 3):
        d.send(ack(0, (1, end)))
        d.expect(TCP(seq=seq(8 + end)), length=MSS)
        d.silence()
        assert c.tcp_info()["snd_cwnd"] == 10


def test_prr_sends_by_delivered_data_after_rack_timer(either):
    """RFC 9937, 4: recovery that a timer began goes on by what is delivered, though the first
    segment's copy is lost, too, and snd_una stands still."""
    d = either(rto_min_us=3_000_000)
    c = d.open_passive(rtt=200)
    send_flight(d, c)
    d.send(ack(0, (8, 9)), at=d.now + 200)
    d.expect(TCP(seq=seq(0)), length=MSS, within=150)
    d.silence()
    d.send(ack(0, (8, 10)))
    d.expect(TCP(seq=seq(1)), length=MSS)
    d.silence()


def test_prr_slow_start_reduction_bound_allows_one_more(either):
    """RFC 9937: an acknowledgement that advances and shows no further loss."""
    d = either(rto_min_us=3_000_000)
    c = d.open_passive(rtt=200)
    send_flight(d, c)
    d.run(d.now + 200)
    d.send(ack(0, (9, 10)))
    d.expect(TCP(seq=seq(0)), length=MSS, within=150)
    d.silence()
    d.send(ack(1, (9, 10)))
    for i in (1, 2):
        d.expect(TCP(seq=seq(i)), length=MSS)
    d.silence()


def test_third_duplicate_ack_without_sack_retransmits(either):
    d = either(sack=0, rto_min_us=1_000_000)
    c = d.open_passive(sack=False, rtt=200)
    send_flight(d, c)
    d.run(d.now + 200)
    d.strict = False
    d.send(ack(0))
    d.send(ack(0))
    d.silence()
    d.send(ack(0))
    d.expect(TCP(seq=seq(0)), length=MSS, within=100)
    d.send(ack(4), at=d.now + 200)
    assert 4 in numbers(d.drain(d.now + 300))


def test_adjacent_reordering_causes_no_retransmission(either):
    """RFC 8985, 6.2: for a quarter of a round trip at least."""
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=200)
    send_flight(d, c)
    d.send(ack(0, (1, 2)), at=d.now + 200)
    d.send(ack(2))
    d.send(ack(2, (3, 4)))
    d.send(ack(4))
    d.send(ack(10))
    assert numbers(d.drain(d.now + 100)) == []
