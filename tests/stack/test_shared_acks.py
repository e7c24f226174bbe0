# SPDX-License-Identifier: Apache-2.0
"""Segments between HARP hosts share acknowledgements if their sender has asked for that."""

from __future__ import annotations

import pytest
from flow_pair import B, pair

from harp.testing.device import connect_flows
from harp.testing.frames import check_ipv4

DELAY_NS = 20_000
LIMIT_NS = 500_000  # the longest wait for a shared acknowledgement
SLACK_NS = 10_000
SAMPLES_NS = 10_000_000  # the longest time between samples of the round trip
FULL = 1448  # bytes of a full segment


class Answers(list):
    """(time, ns, acknowledged) of each segment that B sends; late_ns: its delay; lost: the payload
    lengths of segments to drop once."""

    def __init__(self) -> None:
        super().__init__()
        self.wire = None
        self.lost: list[int] = []
        self.late_ns = 0

    def impair(self, frame: bytes) -> list[tuple[int, bytes]]:
        segment = check_ipv4(frame)
        if segment.src == B:
            self.append((self.wire.now, segment.ack))
            return [(self.late_ns, frame)]
        if len(segment.payload) in self.lost:
            self.lost.remove(len(segment.payload))
            return []
        return [(0, frame)]


def hosts(wire, rto_min_us=5000, trusted=True, delay_ns=DELAY_NS, **config):
    """A wire, a flow from A to B, its end at B that shares acknowledgements, and B's answers."""
    answers = Answers()
    w, a, b = pair(wire, impair=answers.impair, delay_ns=delay_ns, **config)
    answers.wire = w
    one, other = connect_flows(w, a, b)
    for flow in (one, other) if trusted else ():
        flow.trust(rto_min_us)
    one.push(b"x")
    w.run(until=one.drained, limit_s=1)
    other.received.clear()
    other.shares_acks = True
    answers.clear()
    return w, one, other, answers


def test_shared_ack_waits_for_half_a_millisecond(wire):
    w, one, _, answers = hosts(wire)
    began = w.now
    one.push(b"x", end=True)
    w.run(until=one.drained, limit_s=1)
    assert LIMIT_NS <= w.now - began - 2 * DELAY_NS <= LIMIT_NS + SLACK_NS
    assert len(answers) == 1


def test_one_ack_covers_all_segments_that_share_it(wire):
    """It goes out with the segment that does not share it."""
    w, one, other, answers = hosts(wire)
    for number in range(1, 6):
        one.push(b"x", end=True)
        w.run(until=lambda: len(other.received) == number, limit_s=1)
    assert answers == []
    other.shares_acks = False
    began = w.now
    one.push(b"x", end=True)
    w.run(until=one.drained, limit_s=1)
    assert w.now - began <= 2 * DELAY_NS + SLACK_NS
    assert len(answers) == 1
    w.run(limit_s=0.1)
    assert len(answers) == 1  # the timer has stopped


def test_own_data_carries_the_shared_ack(wire):
    w, one, other, answers = hosts(wire)
    one.push(b"x", end=True)
    w.run(until=lambda: len(other.received) == 1, limit_s=1)
    other.push(b"y", end=True)
    w.run(until=one.drained, limit_s=1)
    w.run(limit_s=0.1)
    assert len(answers) == 1


def test_segments_around_a_hole_are_acked_at_once(wire):
    w, one, other, answers = hosts(wire)
    answers.lost = [500, 600, 600]  # the second hole stays when the first one is filled
    one.push(bytes(500), end=True)
    one.push(bytes(600), end=True)
    began = w.now
    for number in range(1, 4):
        one.push(bytes(FULL), end=True)
        w.run(until=lambda: len(answers) == number, limit_s=1)
        assert w.now - began <= number * (2 * DELAY_NS + SLACK_NS)
    w.run(until=lambda: len(other.received) == 500, limit_s=1)
    assert len(answers) == 4
    w.run(until=one.drained, limit_s=1)


def test_timeout_waits_for_one_shared_ack(wire):
    """The sender has a window of one segment then, and waits for each acknowledgement. The receiver
    notices that at the end of its first wait."""
    w, one, other, answers = hosts(wire, initial_window=100)
    other.expects_more = True
    segments = 64
    answers.lost = [FULL] * (segments + 1)  # and the tail loss probe
    assert one.may_share_ack(segments * FULL)
    one.push(bytes(segments * FULL), end=True)
    w.run(until=lambda: one.view()["cwnd"] == FULL, limit_s=1)  # the timeout
    began = w.now
    w.run(until=one.drained, limit_s=1)
    rounds = segments.bit_length()  # of 1, 2, 4 ... segments
    assert w.now - began <= LIMIT_NS + rounds * (2 * DELAY_NS + SLACK_NS)


def test_message_alone_does_not_end_the_sharing(wire):
    """Its sender pauses, but waits for nothing."""
    w, one, other, answers = hosts(wire)
    for pairs in range(3):
        one.push(b"x", end=True)
        w.run(until=lambda: len(other.received) == 2 * pairs + 1, limit_s=1)
        one.push(b"y", end=True)
        w.run(until=one.drained, limit_s=1)
        w.run(limit_s=0.003)
    assert len(answers) == 3


def test_other_stacks_get_the_usual_acks(wire):
    """One that is not known as a HARP host has not asked for anything."""
    w, one, _, answers = hosts(wire, trusted=False, delayed_ack_us=0)
    began = w.now
    for number in range(1, 5):
        one.push(b"x", end=True)
        w.run(until=one.drained, limit_s=1)
        assert len(answers) == number
    assert w.now - began <= 4 * (2 * DELAY_NS + SLACK_NS)


def test_bytes_delivered_late_say_nothing_about_the_next_segment(wire):
    """They were acknowledged when they arrived."""
    w, one, other, answers = hosts(wire)
    other.limit = 0
    other.shares_acks = False
    one.push(b"x", end=True)
    w.run(until=one.drained, limit_s=1)
    other.limit, other.shares_acks = None, True
    other.resume()
    other.shares_acks = False
    answers.clear()
    began = w.now
    one.push(b"y", end=True)
    w.run(until=one.drained, limit_s=1)
    assert bytes(other.received) == b"xy"
    assert w.now - began <= 2 * DELAY_NS + SLACK_NS


@pytest.mark.parametrize("segments", [7, 8])
def test_quarter_of_window_stays_free(wire, segments):
    """The window of ten segments grows if it is the limit (RFC 7661, 4.3), although the owner never
    fills it."""
    w, one, other, _ = hosts(wire, initial_window=10)
    other.shares_acks = False
    fits = segments < 8
    before = one.view()["cwnd"]
    assert one.may_share_ack(segments * FULL) == fits
    one.push(bytes(segments * FULL))
    w.run(until=one.drained, limit_s=1)
    assert one.view()["cwnd"] == before + segments * FULL * (not fits)


@pytest.mark.parametrize("rto_min_us", [1999, 2000])
def test_low_rto_floor_shares_no_acks(wire, rto_min_us):
    """The sender would retransmit before the acknowledgement comes."""
    _, one, _, _ = hosts(wire, rto_min_us)
    assert one.may_share_ack(1) == (rto_min_us >= 2000)


@pytest.mark.parametrize("excess", [0, 1])
def test_full_segment_fits_behind_shared_bytes(wire, excess):
    """A sender sends no part of a segment, so a quarter of a small window would not do."""
    _, one, _, _ = hosts(wire, initial_window=2)
    assert one.may_share_ack(one.view()["cwnd"] - FULL + excess) == (not excess)


def test_shared_ack_of_host_without_callers_comes_before_the_probe(wire):
    """The worker sends it, 1.8 ms later."""
    w, one, _, answers = hosts(wire, delay_ns=200_000)
    answers.late_ns = 1_800_000 - LIMIT_NS
    assert one.may_share_ack(1)
    one.push(b"x", end=True)
    w.run(until=one.drained, limit_s=1)
    assert w.now - answers[0][0] >= answers.late_ns
    w.run(limit_s=0.1)
    assert len(answers) == 1  # a probe would have been answered


def test_shared_ack_is_no_sample_of_the_round_trip(wire):
    w, one, _, _ = hosts(wire)
    before = one.view()["srtt_us"]
    assert one.may_share_ack(1)
    one.push(b"x", end=True)
    w.run(until=one.drained, limit_s=1)
    assert one.view()["srtt_us"] == before
    one.push(b"y", end=True)  # this sender waits, but this receiver shares all acknowledgements
    w.run(until=one.drained, limit_s=1)
    assert one.view()["srtt_us"] > before


def test_no_ack_is_shared_without_recent_sample_of_the_round_trip(wire):
    """One in 10 ms. Each of these shared acknowledgements takes half a millisecond."""
    w, one, other, _ = hosts(wire)
    shared = 0
    while shared < 100 and one.may_share_ack(1):
        one.push(b"x", end=True)
        w.run(until=one.drained, limit_s=1)
        shared += 1
    assert shared == SAMPLES_NS // (LIMIT_NS + 2 * DELAY_NS) + 1
    other.shares_acks = False
    one.push(b"x", end=True)
    w.run(until=one.drained, limit_s=1)
    assert one.may_share_ack(1)
