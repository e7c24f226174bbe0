# SPDX-License-Identifier: Apache-2.0
"""A round trip over a pause of the own process is no RTT sample (RFC 6298): it measures the pause,
and would raise SRTT and the RTO."""

from __future__ import annotations

import pytest

from harp.testing._flow import FlowStack
from harp.testing.device import finish

CLIENT, SERVER = "192.0.2.1", "192.0.2.2"
ONE_WAY_NS = 50_000
RTT_US = 2 * ONE_WAY_NS // 1000
PAUSE_NS = 10**9

TOLD = pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])


class Hosts:
    """Two stacks on one clock. A stack receives what has arrived before it runs its timers, as in
    the engine."""

    def __init__(self) -> None:
        self.now = 10**9
        self.client, self.server = (
            FlowStack(address=address, seed=(number, 2), delayed_ack_us=1)
            for number, address in enumerate((CLIENT, SERVER), 1)
        )
        self.listener = self.server.listen(80)
        self.later(0)
        self.flow = self.client.connect(SERVER, 80)

    def later(self, ns: int) -> None:
        self.now += ns
        for stack in (self.client, self.server):
            stack.set_time(self.now)

    def carry(self, source: FlowStack, sink: FlowStack) -> None:
        """The frames of `source` arrive at `sink` after ONE_WAY_NS."""
        source.advance(self.now)
        frames = [whole for frame in source.take() for whole in finish(frame, 0)]
        assert frames
        self.later(ONE_WAY_NS)
        for frame in frames:
            sink.receive(frame)
        sink.flush()

    def there(self) -> None:
        self.carry(self.client, self.server)

    def back(self) -> None:
        self.carry(self.server, self.client)

    def pause(self, stack: FlowStack, told: bool) -> None:
        """told: the stack learns of its pause."""
        self.later(PAUSE_NS)
        if told:
            stack.held_up(PAUSE_NS)

    def move(self, delay_ns: int = 1000) -> None:
        """The client sends data. The server acknowledges it after this delay."""
        self.flow.push(b"x" * 1000)
        self.there()
        self.later(delay_ns)
        self.back()


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


@TOLD
def test_acknowledgement_over_pause_is_no_sample(hosts: Hosts, told: bool) -> None:
    hosts.there()
    hosts.back()
    for _ in range(8):
        hosts.move()
    before = hosts.flow.view()
    assert RTT_US <= before["srtt_us"] <= RTT_US + 1
    hosts.flow.push(b"x" * 1000)
    hosts.there()
    hosts.pause(hosts.client, told)
    hosts.back()
    after = hosts.flow.view()
    assert hosts.flow.acked == hosts.flow.pushed
    names = ("srtt_us", "rttvar_us", "rto_us")
    assert ([after[name] for name in names] == [before[name] for name in names]) == told
    hosts.move(delay_ns=500_000)
    assert hosts.flow.view()["srtt_us"] != after["srtt_us"], "the next round trip is a sample"


@TOLD
def test_handshake_over_pause_is_no_sample_of_client(hosts: Hosts, told: bool) -> None:
    hosts.there()
    hosts.pause(hosts.client, told)
    hosts.back()
    assert hosts.flow.established
    assert hosts.flow.view()["srtt_us"] == (0 if told else RTT_US + PAUSE_NS // 1000)
    hosts.move()
    assert (hosts.flow.view()["srtt_us"] < RTT_US + 2) == told


@TOLD
def test_handshake_over_pause_is_no_sample_of_listener(hosts: Hosts, told: bool) -> None:
    hosts.there()
    hosts.back()
    hosts.pause(hosts.server, told)
    hosts.there()
    (accepted,) = hosts.listener.accepted
    assert (accepted.view()["srtt_us"] == 0) == told
