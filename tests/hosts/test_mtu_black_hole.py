# SPDX-License-Identifier: Apache-2.0
"""Paths that drop large frames, or all frames in one direction, without a message."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import Failed, Rank, connect, packet_site

from tools.hosts.lab import Lab

TIMEOUT_MS = 3000


@pytest.mark.slow
@pytest.mark.sanitized
def test_link_fails_and_names_the_direction(tmp_path: Path) -> None:
    """Small frames do not pass either, so the reason is not the MTU."""
    with Lab(hosts=2, wire="veth-1500-nooff-bridge") as lab:
        sites = [
            packet_site(tmp_path / str(host.index), host, timeout_ms=TIMEOUT_MS)
            for host in lab.hosts
        ]
        with Rank(sites[0]) as sender, Rank(sites[1]) as receiver:
            link = connect(sender.init(), receiver.init())
            link.move()
            lab.hosts[0].run(
                ["nsenter", f"--net=/run/netns/{lab.middlebox}", "tc", "qdisc", "add",
                 "dev", "port1", "root", "tbf", "rate", "8bit", "burst", "50", "limit", "50"]
            )  # fmt: skip
            with pytest.raises(Failed) as failure:
                link.move(count=8, size=1 << 20, ms=30_000)
            assert TIMEOUT_MS / 2 <= failure.value.ms <= 5 * TIMEOUT_MS
            (warning,) = sender.warnings
            assert "drop frames in one direction?" in warning


def test_link_fails_and_names_the_mtu(tmp_path: Path) -> None:
    """No endless series of new connections."""
    with Lab(hosts=2, wire="veth-1500-nooff-bridge") as lab:
        for number in range(2):
            lab.hosts[0].run(
                ["nsenter", f"--net=/run/netns/{lab.middlebox}", "ip", "link", "set",
                 f"port{number}", "mtu", "1400"]
            )  # fmt: skip
        sites = [
            packet_site(tmp_path / str(host.index), host, timeout_ms=TIMEOUT_MS)
            for host in lab.hosts
        ]
        with Rank(sites[0]) as sender, Rank(sites[1]) as receiver:
            link = connect(sender.init(), receiver.init())
            with pytest.raises(Failed) as failure:
                link.move(count=8, size=1 << 20, ms=30_000)
            assert TIMEOUT_MS / 2 <= failure.value.ms <= 5 * TIMEOUT_MS
            assert any("small frames only" in line for line in sender.warnings)
