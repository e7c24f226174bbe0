# SPDX-License-Identifier: Apache-2.0
"""Links that are spread over several NICs: `stripe = all`."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from ranks import connect
from several_nics import COUNT, Pair, Traffic, flows_of, pair, rails, uses

from tools.hosts.rails import Rails

__all__ = ["rails"]

SPREAD: dict[str, object] = {"stripe": "all"}
ENDS = pytest.mark.parametrize("host", [0, 1] if os.environ.get("HARP_TEST_FULL") else [1])


def spread(rails: Rails, folder: Path, **keys: object) -> AbstractContextManager[Pair]:
    return pair(rails, folder, keys=({**SPREAD, **keys},) * 2)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "flows,nics",
    [(1, [1, 1, 1, 1]), (4, [1, 1, 1, 1]), (8, [2, 2, 2, 2])],
    ids=["one flow", "four flows", "eight flows"],
)
def test_link_has_flows_on_each_nic(
    rails: Rails, tmp_path: Path, flows: int, nics: list[int]
) -> None:
    with spread(rails, tmp_path, flows=flows) as scene:
        link = scene.connect(0, 2)
        host = rails.lab.hosts[1]
        before = [rails.bytes_in(host, nic) for nic in range(COUNT)]
        link.move(128, 1 << 20)
        scene.use(dict(enumerate(nics)))
        grown = [rails.bytes_in(host, nic) - before[nic] for nic in range(COUNT)]
        assert min(grown) > 128 << 10, grown  # a chunk of each flow
        for flow in (flow for some in flows_of(scene.ranks[0]).values() for flow in some):
            assert [flow.local.split(":")[0], flow.peer.split(":")[0]] in [
                [rails.address(one, nic) for one in rails.lab.hosts] for nic in range(COUNT)
            ]
        scene.no_warnings()


def test_both_directions(rails: Rails, tmp_path: Path) -> None:
    with spread(rails, tmp_path, flows=4) as scene:
        with Traffic(scene.both_ways(0) + scene.both_ways(3)) as traffic:
            traffic.flows()
        scene.use(dict.fromkeys(range(COUNT), 4))
        scene.no_warnings()


def test_sender_alone_uses_nics_that_listen(rails: Rails, tmp_path: Path) -> None:
    """The peer does not spread its links, and has started its home NIC and two others."""
    with pair(rails, tmp_path, keys=({**SPREAD, "flows": 4}, {})) as scene:
        scene.connect(1, 1).move()
        scene.connect(0, 2).move(64, 65536)
        uses(scene.ranks[1], {0: 1, 1: 1, 2: 2}, "R")
        scene.no_warnings()


def test_receiver_alone_changes_nothing(rails: Rails, tmp_path: Path) -> None:
    with pair(rails, tmp_path, keys=({"flows": 4}, SPREAD)) as scene:
        scene.connect(0, 2).move(64, 65536)
        scene.use({2: 4})
        scene.no_warnings()


def test_peer_with_two_of_four_nics(rails: Rails, tmp_path: Path) -> None:
    """The peer has the first two: only these pairs of NICs carry flows."""
    with pair(rails, tmp_path, nics=((), (0, 1)), keys=({**SPREAD, "flows": 4},) * 2) as scene:
        with Traffic(scene.both_ways(1)) as traffic:
            traffic.flows()
        scene.use({0: 4, 1: 4})
        scene.no_warnings()


def test_peer_numbers_its_nics_otherwise(rails: Rails, tmp_path: Path) -> None:
    """The peer's devices 0 and 1 are the NICs 2 and 3."""
    with pair(rails, tmp_path, nics=((), (2, 3)), keys=({**SPREAD, "flows": 4},) * 2) as scene:
        one, other = scene.ranks
        links = [connect(one, other, devices=(0, 0)), connect(other, one, devices=(0, 2))]
        with Traffic(links) as traffic:
            traffic.flows()
        scene.no_warnings()


@pytest.mark.slow
@pytest.mark.sanitized
@ENDS
def test_flows_leave_nic_that_is_down_and_return(rails: Rails, tmp_path: Path, host: int) -> None:
    with spread(rails, tmp_path, flows=4) as scene, Traffic(scene.both_ways(0)) as traffic:
        traffic.flows()
        scene.use(dict.fromkeys(range(COUNT), 2))
        for nic in (0, 2):
            with scene.down(host, nic):
                scene.leave(host, nic, 8)
                traffic.flows()
        scene.use(dict.fromkeys(range(COUNT), 2))
        traffic.flows()
        scene.no_warnings()
