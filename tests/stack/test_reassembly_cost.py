# SPDX-License-Identifier: Apache-2.0
"""Cost of an out-of-order segment: logarithmic in the holes, whatever order the peer chooses."""

from __future__ import annotations

import random

import pytest
from scapy.layers.inet import IP, TCP

from harp.testing._flow import FlowStack
from harp.testing.frames import check_ipv4

OWN, PEER = "192.0.2.1", "192.0.2.2"
HOLES = 1000
RUNS = 64  # that are kept
STEPS = 7  # one for the last run, then the logarithm


@pytest.fixture
def beyond():
    """beyond(at): a byte so far beyond a hole arrives; the steps that its place has cost."""
    s = FlowStack(address=OWN, prefix=24, packets=1024, max_connections=4, rcvbuf=1 << 20,
                  window_scale=7, sack=1)  # fmt: skip
    s.advance(10**12)
    s.listen(80)
    base = IP(src=PEER, dst=OWN)
    options = [("SAckOK", b""), ("WScale", 7)]
    s.receive(bytes(base / TCP(sport=9, dport=80, flags="S", seq=0, options=options)))
    s.flush()
    ack = check_ipv4(s.take()[0].data).seq + 1
    s.receive(bytes(base / TCP(sport=9, dport=80, flags="A", seq=1, ack=ack)))
    frame = bytearray(bytes(base / TCP(sport=9, dport=80, flags="A", seq=0, ack=ack) / b"x"))

    def arrive(at):
        before = s.counters().get("tcp_reassembly_steps", 0)
        frame[24:28] = (1 + at).to_bytes(4, "big")
        s.receive(bytes(frame), b"", 0, True)
        s.flush()
        return s.counters().get("tcp_reassembly_steps", 0) - before

    arrive.stack = s
    return arrive


def blocks(packet):
    """Blocks of an acknowledgement, counted as `beyond` counts."""
    edges = dict(packet[TCP].options).get("SAck", ())
    return [(start - 1, end - 1) for start, end in zip(edges[::2], edges[1::2])]


ORDERS = {
    "upwards": list(range(HOLES)),
    "downwards": list(reversed(range(HOLES))),
    "by chance": random.Random(1).sample(range(HOLES), HOLES),
    "from both ends": [i // 2 if i % 2 else HOLES - 1 - i // 2 for i in range(HOLES)],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_thousand_holes_cost_bounded_steps(beyond, order):
    steps = [beyond(3 * at + 1) for at in order]
    assert max(steps) <= STEPS
    assert sum(steps) > 0
    counters = beyond.stack.counters()
    assert counters["tcp_reassembly_drops"] == HOLES - RUNS
    assert counters["packets_used"] == RUNS + 1  # and their table


def test_segments_behind_one_loss_cost_one_step(beyond):
    """The usual case: all that comes is the next of the last run."""
    for at in range(1, RUNS):  # few holes stay
        beyond(10 * at)
    assert {beyond(10_000 + at) for at in range(HOLES)} == {1}


def test_duplicate_out_of_order_segments_cost_bounded_steps(beyond):
    places = [3 * at + 1 for at in range(RUNS)]
    for at in places:
        beyond(at)
    for at in random.Random(2).choices(places, k=HOLES):
        assert beyond(at) <= STEPS
    assert beyond.stack.counters()["packets_used"] == RUNS + 1


def test_sack_blocks_are_ordered_by_last_growth(beyond):
    """Holes that are made and filled in any order: the newest four are told, the newest first."""
    told = random.Random(3).sample(range(1, 2 * RUNS), 2 * RUNS - 1)
    runs = []  # the newest first
    for at in told:
        near = [run for run in runs if at in (run[0] - 1, run[1])]
        edges = [at, at + 1, *(edge for run in near for edge in run)]
        runs = [(min(edges), max(edges)), *(run for run in runs if run not in near)]
        beyond(at)
        assert blocks(IP(beyond.stack.take()[-1].data)) == runs[:4]
    assert runs == [(1, 2 * RUNS)]
    beyond(0)
    assert blocks(IP(beyond.stack.take()[-1].data)) == []
