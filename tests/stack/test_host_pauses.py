# SPDX-License-Identifier: Apache-2.0
"""Pauses of a host. A pause of this host does not count as silence of its peer. A peer that returns
from a pause soon gets a retransmission."""

from __future__ import annotations

import errno

import pytest

from harp.testing._flow import FlowStack
from harp.testing.device import FlowHost, connect_flows

A, B = "192.0.2.1", "192.0.2.2"
TIMEOUT_MS = 2000
PAUSE_NS = 30 * 10**9


@pytest.fixture
def alive():
    return {"on": True}


@pytest.fixture
def ends(wire, alive):
    """The wire, the host that pauses and its flow, the other flow."""
    hosts = [
        FlowHost(FlowStack(address=address, prefix=24, seed=seed, rto_min_us=5000), seed=seed[0])
        for address, seed in ((A, (1, 2)), (B, (3, 4)))
    ]
    w = wire(*hosts, impair=lambda f: [(0, f)] if alive["on"] else [])
    return w, hosts[0], *connect_flows(w, *hosts)


def pause(w, host, told):
    """The host's clock runs on without calls to the stack. told: the stack learns of the pause."""
    w.now += PAUSE_NS
    host.stack.set_time(w.now)
    if told:
        host.stack.held_up(PAUSE_NS)
    host.stack.advance(w.now)


@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
@pytest.mark.parametrize("waits_for", ["acknowledgement", "data"])
def test_own_pause_does_not_count_as_peer_silence(ends, alive, told, waits_for):
    w, host, one, _ = ends
    one.set_timeout(TIMEOUT_MS)
    one.set_keepalive(500, 100, 6)
    alive["on"] = False
    if waits_for == "acknowledgement":
        one.push(b"x")
        end = w.now + 10**9
    else:
        end = w.now + int(1.2 * 10**9)  # after the first probe
    w.run(until=lambda: w.now >= end, limit_s=3)
    pause(w, host, told)
    assert one.closed == (None if told else errno.ETIMEDOUT)
    if told:
        left = w.now
        w.run(until=lambda: one.closed is not None, limit_s=3)
        assert one.closed == errno.ETIMEDOUT
        assert w.now - left < 1.2 * 10**9  # what had passed before the pause counts


def test_user_timeout_bounds_syn_retransmission(wire):
    """However many SYNs that takes: a stopped peer answers none of them, and the first that it
    hears of after a pause is soon."""
    hosts = [
        FlowHost(FlowStack(address=address, prefix=24, seed=seed, rto_initial_us=200_000))
        for address, seed in ((A, (1, 2)), (B, (3, 4)))
    ]
    w = wire(*hosts, impair=lambda f: [])
    flow = hosts[0].stack.connect(B, 80)
    flow.set_timeout(100_000)
    began = w.now
    w.run(until=lambda: flow.closed is not None, limit_s=110)
    assert flow.closed == errno.ETIMEDOUT
    assert 99 <= (w.now - began) / 1e9 <= 102
    assert hosts[0].stack.counters()["tcp_retransmits"] >= 45


def test_backed_off_timer_still_retries_within_600_ms(ends, alive):
    """However long the timeout had backed off."""
    w, _, one, other = ends
    one.trust(5000)
    other.trust(5000)
    one.set_timeout(60_000)
    alive["on"] = False
    one.push(b"x")
    end = w.now + 40 * 10**9
    w.run(until=lambda: w.now >= end, limit_s=50)
    assert one.closed is None
    alive["on"] = True
    back = w.now
    w.run(until=one.drained, limit_s=10)
    assert w.now - back < 600_000_000
