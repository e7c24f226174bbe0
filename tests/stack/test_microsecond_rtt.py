# SPDX-License-Identifier: Apache-2.0
"""Round trips of 20 µs, as in one rack: timers derived from the RTT must not fire too early
(gVisor #6113)."""

from __future__ import annotations

import pytest

from harp.testing._flow import FlowStack
from harp.testing.device import FlowHost, FlowTransfer, connect_flows
from harp.testing.frames import check_ipv4

A, B = "192.0.2.1", "192.0.2.2"
ROUND_TRIP_NS = 20_000


def pair(wire, impair):
    """Two HARP hosts; the wire carries 100 Gbit/s, and its queue whatever comes."""
    hosts = [
        FlowHost(FlowStack(
            address=address, seed=seed, prefix=24, max_connections=16, packets=2048, timestamps=1,
            window_scale=7, rcvbuf=1 << 20, rto_min_us=200_000, initial_window=100,
        ))
        for address, seed in ((A, (1, 2)), (B, (3, 4)))
    ]  # fmt: skip
    w = wire(*hosts, delay_ns=ROUND_TRIP_NS // 2, rate_bps=100_000_000_000, queue=10_000,
             impair=impair)  # fmt: skip
    flows = connect_flows(w, *hosts)
    for flow in flows:
        flow.trust(5000)
    return w, *hosts, *flows


def test_reordering_within_quarter_rtt_is_no_loss(wire):
    """Two neighbours that change places, again and again."""
    count = 0

    def impair(frame):
        nonlocal count
        if check_ipv4(frame).src == A and len(frame) > 1000:
            count += 1
            return [(300 if count % 10 == 0 else 0, frame)]  # as long as two frames take
        return [(0, frame)]

    w, a, b, one, other = pair(wire, impair)
    w.run([FlowTransfer(one, other, 3_000_000)], limit_s=5)
    assert b.stack.counters()["tcp_out_of_order"] > 100
    assert a.stack.counters().get("tcp_retransmits", 0) == 0


def test_late_ack_within_2_ms_draws_no_tail_loss_probe(wire):
    """Two round trips are 40 µs, less than a host takes to get round to it: 2 ms are granted."""
    late = {B: 0, A: 0}
    w, a, b, one, other = pair(wire, lambda frame: [(late[check_ipv4(frame).src], frame)])
    late[B] = 1_500_000
    for _ in range(20):
        one.push(b"x" * 1000)
        w.run(until=one.drained, limit_s=1)
    assert a.stack.counters().get("tcp_tail_probes", 0) == 0
    assert a.stack.counters().get("tcp_retransmits", 0) == 0


def test_tail_loss_is_recovered_within_milliseconds(wire):
    """A probe after 2 ms, then timeouts that begin with 5 ms, not with others' 200."""
    sent, lost = [], []

    def impair(frame):
        if not lost:
            return [(0, frame)]
        sent.append(w.now)
        return []

    w, a, b, one, other = pair(wire, impair)
    lost.append(True)
    one.push(b"x" * 1000)
    w.run(until=lambda: len(sent) == 5, limit_s=1)
    pauses = [(after - before) / 1e6 for before, after in zip(sent, sent[1:])]
    assert pauses == pytest.approx([2, 5, 10, 20], rel=0.02)


def test_tail_loss_probe_adapts_to_longer_rtt(wire):
    """At 3 ms each message's probe precedes its acknowledgement, until the echoes have told."""
    late = {B: 0, A: 0}
    w, a, b, one, other = pair(wire, lambda frame: [(late[check_ipv4(frame).src], frame)])
    late[B] = 3_000_000
    probes = []
    for _ in range(40):
        one.push(b"x" * 1000)
        w.run()  # the DSACK arrives, too, and ends the probe's episode
        probes.append(a.stack.counters().get("tcp_tail_probes", 0))
    assert probes[0] == 1 and probes[20] == probes[39], probes


def test_tail_loss_probe_takes_place_of_rto(wire):
    """The RTO comes before two round trips have passed, if they are long and do not vary."""
    frames = None

    def impair(frame):
        nonlocal frames
        if frames is not None and check_ipv4(frame).payload:
            frames += 1
            if frames in (9, 10):  # the last two of the message
                return []
        return [(10_000_000, frame)]

    w, a, b, one, other = pair(wire, impair)
    for _ in range(40):  # until hardly any variation is left
        one.push(b"x" * 1000)
        w.run(until=one.drained, limit_s=1)
    frames = 0
    one.push(b"x" * (10 * 1448))
    w.run(until=one.drained, limit_s=1)
    counters = a.stack.counters()
    assert counters["tcp_tail_probes"] == 1 and counters["tcp_retransmits"] == 2
    assert counters.get("tcp_rto_fired", 0) == 0


def test_rto_floor_is_added_to_srtt(wire):
    """The floor counts from the round trip's end: here 20 ms, and 3 ms more once."""
    late = {B: 20_000_000, A: 0}
    w, a, b, one, other = pair(wire, lambda frame: [(late[check_ipv4(frame).src], frame)])
    for turn in range(40):  # until hardly any variation is left
        late[B] += 3_000_000 * (turn == 39)
        one.push(b"x" * 1000)
        w.run(until=one.drained, limit_s=1)
    assert a.stack.counters().get("tcp_retransmits", 0) == 0
