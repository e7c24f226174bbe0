# SPDX-License-Identifier: Apache-2.0
"""Timers of a flow: user timeout, keepalive, and a device that takes no probes."""

from __future__ import annotations

import errno

import pytest
from flow_pair import pair

from harp.testing.device import connect_flows
from harp.testing.frames import check_ipv4


def test_user_timeout_closes_flow_with_etimedout(wire):
    alive = {"on": True}
    w, a, b = pair(wire, impair=lambda f: [(0, f)] if alive["on"] else [])
    one, other = connect_flows(w, a, b)
    one.set_timeout(300)
    alive["on"] = False
    began = w.now
    one.push(b"x")
    w.run(until=lambda: one.closed is not None, limit_s=10)
    assert one.closed == errno.ETIMEDOUT
    assert 299_000_000 <= w.now - began <= 600_000_000


def test_keepalive_detects_dead_peer(wire):
    alive = {"on": True}
    w, a, b = pair(wire, impair=lambda f: [(0, f)] if alive["on"] else [])
    one, other = connect_flows(w, a, b)
    one.set_keepalive(1000, 200, 3)
    end = w.now + 5 * 10**9
    w.run(until=lambda: w.now >= end, limit_s=10)
    assert one.closed is None
    alive["on"] = False
    began = w.now
    w.run(until=lambda: one.closed is not None, limit_s=10)
    assert one.closed == errno.ETIMEDOUT
    assert w.now - began <= 2_000_000_000


@pytest.mark.parametrize("timeout_ms", [5000, 40_000])
def test_user_timeout_lasts_as_configured(wire, timeout_ms):
    """However often something was sent again until then."""
    alive = {"on": True}
    w, a, b = pair(wire, impair=lambda f: [(0, f)] if alive["on"] else [])
    one, other = connect_flows(w, a, b)
    one.set_timeout(timeout_ms)
    one.set_keepalive(timeout_ms // 3, timeout_ms // 10, 6)
    alive["on"] = False
    began = w.now
    one.push(b"x")
    w.run(until=lambda: one.closed is not None, limit_s=100)
    assert timeout_ms - 1 <= (w.now - began) / 1e6 <= timeout_ms + 300


def test_full_device_is_not_a_dead_peer(wire):
    """The device takes no frame for a while, and no probe: these are no unanswered keepalives."""
    w, a, b = pair(wire)
    one, other = connect_flows(w, a, b)
    one.set_timeout(1000)
    one.set_keepalive(333, 50, 6)
    a.stack.room = 0
    one.push(b"x" * 1000)
    for _ in range(800):
        w.now += 1_000_000
        a.stack.advance(w.now)
    assert one.closed is None
    a.stack.room = None
    w.run(until=one.drained, limit_s=1)
    assert 700e6 <= a.stack.counters()["tcp_device_wait_ns"] <= 900e6


def refuse(w, a, seconds):
    """The device takes nothing for so long."""
    end = w.now + int(seconds * 10**9)
    while w.now < end:
        a.stack.room = 0
        a.stack.advance(w.now)
        w.now += 50_000_000


def test_unsent_keepalive_probes_do_not_count(wire):
    """Keepalives that a full port refuses: as soon as one goes out, the peer answers."""
    w, a, b = pair(wire)
    client, _ = connect_flows(w, a, b)
    client.set_keepalive(1000, 100, 3)
    refuse(w, a, 1.5)
    assert client.closed is None
    assert a.stack.counters().get("tcp_keepalives", 0) == 0
    a.stack.room = None
    w.run(until=lambda: a.stack.counters().get("tcp_keepalives", 0) >= 2, limit_s=10)
    assert client.closed is None


def test_device_refusing_all_probes_ends_connection(wire):
    """It has gone, and a connection that only waits has no other timer to end it."""
    w, a, b = pair(wire)
    client, _ = connect_flows(w, a, b)
    client.set_keepalive(1000, 100, 3)
    refuse(w, a, 2)
    assert client.closed == errno.ETIMEDOUT


def test_probe_does_not_replace_owed_ack(wire):
    """A probe lies below the peer's window, so the peer ignores its acknowledgement."""
    w, a, b = pair(wire)
    one, other = connect_flows(w, a, b)
    other.trust(5000)
    one.push(b"x" * 100)
    a.stack.flush()
    for frame in a.stack.take():
        b.stack.receive(frame.data)
    other.probe()
    b.stack.flush()
    b.stack.flush()  # the acknowledgement of a lone short message waits for one more flush
    probe, *rest = (check_ipv4(frame.data) for frame in b.stack.take())
    assert [(answer.seq - probe.seq, answer.ack - probe.ack) for answer in rest] == [(1, 0)]
