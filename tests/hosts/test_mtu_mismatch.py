# SPDX-License-Identifier: Apache-2.0
"""Two hosts with different MTUs: segments fit the smaller one, and one line warns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ranks import Perf, Rank, Site, connect, packet_site, wait_until

from tools.hosts.lab import Lab

SMALL, LARGE = 1200, 1500
HEADERS = 40 + 12  # IPv4, TCP, timestamps


def sites_of(lab: Lab, folder: Path, own_address: bool) -> list[Site]:
    return [
        packet_site(folder / str(host.index), host, own_address, mtu=mtu)
        for host, mtu in zip(lab.hosts, (SMALL, LARGE))
    ]


def mss_in_use(rank: Rank) -> set[int]:
    """The MSS of its flows, once all are published as open: a worker publishes at its next tick."""

    def published() -> set[int]:
        flows = [flow for process in rank.site.published() for flow in process.flows]
        found = {flow.mss for flow in flows if flow.link}
        return set() if 0 in found else found

    return wait_until(published, 20, "no flow was published")


@pytest.mark.parametrize("own_address", [False, True], ids=["kernel address", "own address"])
def test_mtu_mismatch_is_warned_of_once(lab: Lab, tmp_path: Path, own_address: bool) -> None:
    """Each rank warns once, for any number of links."""
    sites = sites_of(lab, tmp_path, own_address)
    with Rank(sites[0]) as small, Rank(sites[1]) as large:
        small.init()
        large.init()
        for sender, receiver in ((small, large), (large, small)) * 3:
            connect(sender, receiver).move(count=4, size=300_000)
        for rank, own, peer in ((small, SMALL, large), (large, LARGE, small)):
            (warning,) = rank.warnings
            said = f"HARP: the MTU of packet:eth0 is {own}, at {peer.site.address}:"
            assert said in warning
            assert f"it is {SMALL + LARGE - own}: segments are cut to the smaller one" in warning
            assert "set both NICs to the same MTU" in warning
            assert mss_in_use(rank) == {SMALL - HEADERS}
            rank.do("finalize")


def test_all_reduce_with_mtu_mismatch(lab: Lab, tmp_path: Path) -> None:
    """The NICs have different MTUs, as on real hosts."""
    lab.hosts[0].run(["ip", "link", "set", lab.hosts[0].interface, "mtu", str(SMALL)])
    try:
        all_reduce(lab, [packet_site(tmp_path / str(host.index), host) for host in lab.hosts])
    finally:
        lab.hosts[0].run(["ip", "link", "set", lab.hosts[0].interface, "mtu", str(LARGE)])


def all_reduce(lab: Lab, sites: list[Site]) -> None:
    args = ["all_reduce", "-b", "8", "-e", "4M", "-f", "64", "-n", "3", "-w", "1"]
    rendezvous = f"{lab.hosts[0].address}:29500"
    with Perf(sites[0], args, 0, rendezvous) as one, Perf(sites[1], args, 1, rendezvous) as other:
        for rank in (one, other):
            assert rank.wait(40) == 0, rank.lines()
            (warning,) = rank.warnings
            assert re.search(r"the MTU of packet:eth0 is \d+, at 10\.77\.0\.\d", warning)
        assert one.wrong() == [0] * 4
