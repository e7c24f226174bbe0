# SPDX-License-Identifier: Apache-2.0
"""A host with several NICs is dead, or one of its NICs is silent for long. A dead host is noticed
after timeout_ms, however many routes lead to it. A link that one NIC still reaches goes on."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ranks import Failed
from several_nics import COUNT, pair, uses

from tools.hosts.lab import Lab
from tools.hosts.rails import Rails, add_rails

TIMEOUT_MS = 3000
ARP_S = 9.0  # seconds without an ARP reply after which a host with one NIC is dead


@pytest.fixture(scope="module")
def rails() -> Iterator[Rails]:
    with Lab(hosts=2, wire="veth-1500") as lab:
        yield add_rails(lab, COUNT, one_subnet=True)


@contextmanager
def silent(rails: Rails, *nics: int) -> Iterator[None]:
    """The switch's ports of these NICs of the second host are down. The first host keeps all of its
    carriers, and sees silence only."""

    def turn(state: str) -> None:
        for nic in nics:
            args = ["ip", "-n", rails.lab.hosts[0].namespace, "link", "set", f"rail1-{nic}"]
            subprocess.run([*args, state], check=True, timeout=5)

    turn("down")
    try:
        yield
    finally:
        turn("up")


@pytest.mark.slow
@pytest.mark.parametrize("waits_for", ["acknowledgement", "data"])
def test_dead_host_of_several_nics_is_noticed_after_one_timeout(
    rails: Rails, tmp_path: Path, waits_for: str
) -> None:
    keys = {"timeout_ms": TIMEOUT_MS}
    with pair(rails, tmp_path, keys=(keys, keys)) as scene:
        link = scene.connect(0 if waits_for == "acknowledgement" else 1, 1)
        link.move()
        rank = scene.ranks[0]
        with silent(rails, *range(COUNT)):
            if waits_for == "acknowledgement":
                rank.start("send", link.sends, 64, 65536, 60_000)
            else:
                rank.start("receive", link.receives, 4, 65536, 60_000)
            with pytest.raises(Failed) as failure:
                rank.finish(4 * TIMEOUT_MS / 1e3)
        print(f"noticed after {failure.value.ms:.0f} ms: {rank.warnings}")
        assert failure.value.ms < 1.9 * TIMEOUT_MS


@pytest.mark.slow
def test_silent_nic_of_a_live_host_does_not_fail_link(rails: Rails, tmp_path: Path) -> None:
    """ARP for one NIC fails for longer than a host with one NIC may be silent."""
    with pair(rails, tmp_path) as scene:
        link = scene.connect(1, 1)
        link.move()
        waiting, sender = scene.ranks
        waiting.start("receive", link.receives, 4, 65536, 60_000)
        with silent(rails, 1):
            time.sleep(ARP_S + 4)
            sender.do("send", link.sends, 4, 65536, 60_000, timeout=60)
            waiting.finish(60)
        scene.no_warnings()
        uses(waiting, {1: 1})
