# SPDX-License-Identifier: Apache-2.0
"""Cost of a SACK block: the holes and records that it covers, not the window (RFC 2018)."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import payload

MSS = 1460
SEGMENTS = 120


def edges(*blocks):
    return [(1 + first * MSS, 1 + end * MSS) for first, end in blocks]


@pytest.fixture
def say(dialogue):
    """A flight of SEGMENTS; say(blocks) acknowledges some, and returns the steps that it cost."""
    d = dialogue(initial_window=SEGMENTS, sndbuf=1 << 20, window_scale=0)
    c = d.open_passive(rtt=50, wscale=7, window=60_000)
    for _ in range(SEGMENTS):
        c.send(b"x" * MSS)  # each in a transmit record of its own
        d.settle()
    d.ignore()
    d.strict = False
    d.run(d.now + 50)

    def steps(*blocks, ack=0):
        before = d.stack.counters().get("tcp_sack_steps", 0)
        flat = tuple(edge for block in edges(*blocks) for edge in block)
        options = [("NOP", None), ("NOP", None), ("SAck", flat)] if flat else []
        d.send(TCP(flags="A", seq=1, ack=1 + ack * MSS, window=60_000, options=options))
        d.stack.take()
        return d.stack.counters().get("tcp_sack_steps", 0) - before

    steps.sacked = lambda: c.tcp_info()["sacked"]
    return steps


def test_sacked_run_growing_upwards_costs_few_steps(say):
    say((SEGMENTS // 2, SEGMENTS // 2 + 1))
    for end in range(SEGMENTS // 2 + 2, SEGMENTS):
        assert say((SEGMENTS // 2, end)) <= 4
    assert say.sacked() == SEGMENTS // 2 - 1


def test_sacked_run_growing_downwards_costs_few_steps(say):
    for first in range(SEGMENTS - 2, SEGMENTS // 2, -1):
        assert say((first, SEGMENTS - 1)) <= 6
    assert say.sacked() == SEGMENTS // 2 - 2


def test_sack_blocks_with_many_holes_cost_few_steps(say):
    """Each second segment is lost; the three blocks that fit are the newest."""
    blocks = [(at, at + 1) for at in range(1, SEGMENTS, 2)]
    for newest in range(3, len(blocks)):
        assert say(*blocks[newest : newest - 3 : -1]) <= 20
    # Then they are filled from the bottom; only the first is far from what grew last.
    say((1, 4))
    for at in range(4, SEGMENTS - 1, 2):
        assert say((1, at + 2)) <= 6
    assert say.sacked() == SEGMENTS - 1


def test_repeated_sack_block_costs_two_steps(say):
    say((SEGMENTS // 2, SEGMENTS - 1))
    for _ in range(20):
        assert say((SEGMENTS // 2, SEGMENTS - 1)) <= 2


def test_adjacent_sacked_segments_form_one_record(say):
    """What is sacked in pieces, in any order, is acknowledged as one, to the byte."""
    order = [7 * at % 51 for at in range(51)]
    for at in order:
        if at:
            say((at, at + 1))
    assert say.sacked() == 50
    say(ack=20)
    assert say.sacked() == 31
    assert say((20, 51), ack=20) <= 2
    say(ack=51)
    assert say.sacked() == 0


def test_forged_sack_blocks_leave_records_to_others(dialogue):
    """A peer that names every other byte has a record for each; the last are not for that."""
    d = dialogue(initial_window=SEGMENTS, sndbuf=1 << 20, window_scale=0)
    c = d.open_passive(rtt=50, wscale=7, window=60_000)
    c.send(b"x" * SEGMENTS * MSS)
    d.ignore()
    d.strict = False
    for first in range(1000, 4000, 6):
        flat = tuple(edge + first for edge in (4, 5, 2, 3, 0, 1))
        options = [("NOP", None), ("NOP", None), ("SAck", flat)]
        d.send(TCP(flags="A", seq=1, ack=1, window=60_000, options=options))
        d.stack.take()
    d.ignore()
    d.peer_port += 1
    other = d.open_passive(port=81)
    other.send(b"y" * 100)
    assert b"y" * 100 in [payload(p) for p in d.drain(until=d.now + 5)]


def test_peer_that_sacks_each_second_byte_costs_a_bounded_number_of_steps(dialogue):
    """The stack records 512 runs and ignores further ones, but a block may still join runs."""
    d = dialogue(initial_window=SEGMENTS, packets=8192)
    c = d.open_passive(rtt=50, wscale=7, window=60_000)
    c.send(b"x" * 8000)
    d.ignore()
    d.strict = False

    def sack(*blocks):
        before = d.stack.counters()
        flat = tuple(edge for block in blocks for edge in block)
        options = [("NOP", None), ("NOP", None), ("SAck", flat)]
        d.send(TCP(flags="A", seq=1, ack=1, window=60_000, options=options))
        d.stack.take()
        after = d.stack.counters()
        return {
            name: after.get(name, 0) - before.get(name, 0)
            for name in ("tcp_sack_steps", "tcp_sack_ignored")
        }

    bytes_of_peer = [(at, at + 1) for at in range(2, 4000, 2)]
    ignored = sack(*bytes_of_peer[3::-1])["tcp_sack_ignored"]
    for newest in range(7, len(bytes_of_peer), 4):
        ignored += sack(*bytes_of_peer[newest : newest - 4 : -1])["tcp_sack_ignored"]
    assert ignored == newest + 1 - 512
    cost = sack(*bytes_of_peer[3::-1])
    assert cost["tcp_sack_steps"] <= 4 * 513
    assert sack((7001, 7002))["tcp_sack_ignored"] == 1
    assert sack((2, 7001))["tcp_sack_ignored"] == 0
    assert c.tcp_info()["sacked"] == 6999 // MSS + 1
