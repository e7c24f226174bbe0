# SPDX-License-Identifier: Apache-2.0
"""Hosts with several NICs, some of which go down: links continue on other NICs, move back when
their own NIC is up again, and lose no byte."""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from pathlib import Path

import pytest
from ranks import Failed
from several_nics import COUNT, Pair, Traffic, pair, rails, uses

from tools.hosts.rails import Rails

__all__ = ["rails"]

FULL = bool(os.environ.get("HARP_TEST_FULL"))
# By default one host's NICs fail. The other host's fail in the tests of several kinds and of flaps.
ENDS = pytest.mark.parametrize("host", [0, 1] if FULL else [1])
FLAP_S = 30.0 if FULL else 5.0
MANY = 40 if FULL else 8  # random moments

KINDS: dict[str, tuple[dict[str, str], dict[str, object]]] = {
    "one flow": ({}, {}),
    "checksums": ({"HARP_CHECKSUM": "1"}, {}),
    "key": ({"HARP_KEY_FILE": "key"}, {}),
    "instances and flows": ({}, {"instances": 2, "flows": 4}),
}


def made(rails: Rails, folder: Path, kind: str = "one flow", **keys: object):  # type: ignore
    """A pair of one of the kinds."""
    environment, more = KINDS[kind]
    if "HARP_KEY_FILE" in environment:
        key = folder / "key"
        key.write_bytes(b"correct horse battery staple")
        key.chmod(0o600)
        environment = {"HARP_KEY_FILE": str(key)}
    return pair(rails, folder, environment, keys=({**more, **keys},) * 2)


def on_one(scene: Pair, nic: int, links: int, flows: int = 1) -> None:
    scene.use({nic: links * flows})


@pytest.mark.quick_cases(1)
@ENDS
@pytest.mark.parametrize("kind", KINDS)
def test_traffic_leaves_nic_that_is_down_and_returns(
    rails: Rails, tmp_path: Path, host: int, kind: str
) -> None:
    flows = 4 if "flows" in kind else 1
    with made(rails, tmp_path, kind) as scene:
        links = scene.both_ways(1)
        on_one(scene, 1, 2, flows)
        with Traffic(links) as traffic:
            traffic.flows()
            with scene.down(host, 1):
                scene.leave(host, 1, 2 * flows)
                traffic.flows()
            on_one(scene, 1, 2, flows)
            traffic.flows()
        scene.no_warnings()


@pytest.mark.slow
@pytest.mark.sanitized
@ENDS
def test_idle_links_survive_nic_that_is_down(rails: Rails, tmp_path: Path, host: int) -> None:
    with made(rails, tmp_path) as scene:
        links = scene.both_ways(1)
        for link in links:
            link.move()
        with scene.down(host, 1):
            time.sleep(2)
            for link in links:
                link.move()
        time.sleep(2)
        for link in links:
            link.move()
        on_one(scene, 1, 2)
        scene.no_warnings()


@pytest.mark.slow
@pytest.mark.sanitized
@ENDS
def test_receiver_waits_while_nics_change(rails: Rails, tmp_path: Path, host: int) -> None:
    """The receives are posted before the NIC goes down, the sends follow later."""
    with made(rails, tmp_path) as scene:
        link = scene.connect(0, 1)
        link.move()
        link.receiver.start("receive", link.receives, 8, 65536, 60_000)
        with scene.down(host, 1):
            time.sleep(2)
            link.sender.do("send", link.sends, 8, 65536, 60_000, timeout=60)
            link.receiver.finish(60)
        scene.no_warnings()


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.parametrize("paused", [0, 1], ids=["first host", "second host"])
def test_stopped_process_continues_on_another_nic(
    rails: Rails, tmp_path: Path, paused: int
) -> None:
    """The NIC goes down, and while it is down a process is stopped for a while."""
    with made(rails, tmp_path) as scene, Traffic(scene.both_ways(1)) as traffic:
        traffic.flows()
        with scene.down(0, 1):
            scene.ranks[paused].signal(signal.SIGSTOP)
            time.sleep(2)
            scene.ranks[paused].signal(signal.SIGCONT)
            traffic.flows(60)
        scene.no_warnings()


@pytest.mark.slow
@pytest.mark.sanitized
@ENDS
def test_last_nic_carries_all_links(rails: Rails, tmp_path: Path, host: int) -> None:
    with made(rails, tmp_path) as scene:
        links = [link for nic in range(COUNT) for link in scene.both_ways(nic)]
        with Traffic(links, (10, 65536, 60_000)) as traffic:
            traffic.flows()
            with scene.down(host, 0, 1, 3):
                uses(scene.ranks[host], {2: 2 * COUNT})
                traffic.flows()
            scene.use(dict.fromkeys(range(COUNT), 2))
            traffic.flows()
        scene.no_warnings()


@pytest.mark.slow
@pytest.mark.sanitized
@ENDS
def test_links_wait_while_all_nics_are_down(rails: Rails, tmp_path: Path, host: int) -> None:
    with made(rails, tmp_path) as scene, Traffic(scene.both_ways(1)) as traffic:
        traffic.flows()
        with scene.down(host, *range(COUNT)):
            time.sleep(3)
        traffic.flows(60)
        scene.no_warnings()


@pytest.mark.slow
@pytest.mark.sanitized
@ENDS
def test_links_fail_if_all_nics_stay_down(rails: Rails, tmp_path: Path, host: int) -> None:
    with made(rails, tmp_path, timeout_ms=3000) as scene:
        links = scene.both_ways(1)
        Traffic(links).stop()
        for rank, comms in zip(scene.ranks, ((0, 1), (0, 1))):
            rank.start("exchange", 100_000, 65536, 100_000, *comms)
        time.sleep(0.3)
        with scene.down(host, *range(COUNT)):
            for rank in scene.ranks:
                with pytest.raises(Failed):
                    rank.finish(30)
                assert any("failed: flow 0: " in line for line in rank.warnings), rank.lines()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS if FULL else ["instances and flows"])
def test_flapping_nics_lose_nothing(rails: Rails, tmp_path: Path, kind: str) -> None:
    """Two NICs of each host go down and up at random. At times all four ends are down."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    with made(rails, tmp_path, kind) as scene:
        links = scene.both_ways(0) + scene.both_ways(1)
        for host in (0, 1):
            for nic in (2, 3):
                scene.set_nic(host, nic, False)
        with Traffic(links, (10, 65536, 110_000)) as traffic:
            limit = time.monotonic() + FLAP_S
            while time.monotonic() < limit:
                for host in (0, 1):
                    for nic in (0, 1):
                        scene.set_nic(host, nic, draw.random() < 0.5)
                time.sleep(0.5)
            for host in (0, 1):
                for nic in (0, 1):
                    scene.set_nic(host, nic, True)
            traffic.flows(60)
        scene.no_warnings()


@pytest.mark.quick_cases(1)
@ENDS
@pytest.mark.parametrize("count,size", [
    # The sender has nothing to send, so only keepalives notice the lost NIC.
    pytest.param(4, 16384, marks=pytest.mark.slow, id="few"),
    pytest.param(64, 65536, id="window"),
])  # fmt: skip
def test_unread_bytes_move_along(
    rails: Rails, tmp_path: Path, host: int, count: int, size: int
) -> None:
    """The receiver posts nothing until its flow has moved twice."""
    if count == 4 and rails.one_subnet and not FULL:
        pytest.skip("the long form: keepalives do not depend on subnets")
    with made(rails, tmp_path) as scene:
        link = scene.connect(0, 1)
        link.move()
        link.sender.start("send", link.sends, count, size, 60_000)
        time.sleep(0.5)
        with scene.down(host, 1):
            scene.leave(0, 1)
            time.sleep(0.5)
        on_one(scene, 1, 1)
        link.receiver.do("receive", link.receives, count, size, 60_000, timeout=60)
        link.sender.finish(60)
        link.move()
        scene.no_warnings()
