# SPDX-License-Identifier: Apache-2.0
"""A port of the switch between hosts goes down. A host waits for its own lost carrier. To its
peers, it is a dead host only while they wait for it, not later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import Failed, Rank, connect, packet_site
from switched import switched, without_carrier

from tools.hosts.lab import Lab

__all__ = ["switched"]

SIZE = 65536
DEAD_S = 9.0  # seconds without an ARP reply after which a host is dead


@pytest.fixture
def ranks(switched: Lab, tmp_path: Path) -> Iterator[list[Rank]]:
    sites = [packet_site(tmp_path / str(host.index), host) for host in switched.hosts]
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        one.init()
        other.init()
        yield [one, other]


@pytest.mark.slow
def test_own_carrier_loss_does_not_fail_link(switched: Lab, ranks: list[Rank]) -> None:
    """The peer does not wait, so neither side reports a dead host."""
    one, other = ranks
    link = connect(other, one)
    link.move()
    one.start("receive", link.receives, 4, SIZE, 60_000)
    with without_carrier(switched, switched.hosts[0]):
        time.sleep(DEAD_S + 3)
    other.do("send", link.sends, 4, SIZE, 60_000, timeout=60)
    one.finish(60)
    (warning,) = one.warnings
    assert "has lost its carrier" in warning
    assert other.warnings == []


@pytest.mark.slow
def test_past_outage_does_not_fail_later_receive(switched: Lab, ranks: list[Rank]) -> None:
    """ARP requests that failed before a link began to wait do not fail that link."""
    one, other = ranks
    first, second = connect(other, one), connect(other, one)
    first.move()
    second.move()
    one.start("receive", first.receives, 4, SIZE, 60_000)
    with without_carrier(switched, switched.hosts[1]):
        with pytest.raises(Failed):
            one.finish(30)
        (warning,) = one.warnings
        assert "does not answer ARP" in warning
    time.sleep(0.2)
    one.start("receive", second.receives, 4, SIZE, 60_000)
    time.sleep(1.5)
    other.do("send", second.sends, 4, SIZE, 60_000, timeout=60)
    one.finish(60)
    assert len(one.warnings) == 1
