# SPDX-License-Identifier: Apache-2.0
"""Two NICs of a host in one subnet, with Linux's ARP settings.

harp doctor names the fault. Each NIC carries a link after the remedy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from ranks import Rank, connect
from several_nics import Traffic, all_up, pair, uses

from tools.hosts.lab import Host, Lab
from tools.hosts.rails import Rails, add_rails
from tools.hosts.ranks import Site

NICS = 2


@pytest.fixture
def rails() -> Iterator[Rails]:
    with Lab(hosts=2, wire="veth-1500") as lab:
        yield add_rails(lab, NICS, one_subnet=True, linux_defaults=True)


def arp_findings(host: Host, site: Site) -> list[tuple[str, str]]:
    """The level and text of what doctor says of ARP."""
    args = [sys.executable, "-m", "harp", "doctor", "--json"]
    done = host.run(args, site.all_environment(), check=False)
    found = json.loads(done.stdout)["findings"]
    return [(one["level"], one["text"]) for one in found if one["about"] == "ARP"]


def apply_remedy(host: Host, site: Site, remedy: str) -> None:
    if remedy == "harp setup":
        args = [sys.executable, "-m", "harp", "setup", "--yes"]
        host.run(args, site.all_environment())
        return
    ((_, text),) = arp_findings(host, site)
    host.run(text.partition(", or ")[2].split())


def links_open(sites: list[Site]) -> None:
    """Each NIC of both hosts carries a link in each direction."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(Rank(site)).init(devices=NICS) for site in sites)
        for nic in range(NICS):
            connect(one, other, devices=(nic, nic)).move()
            connect(other, one, devices=(nic, nic)).move()
        for rank in (one, other):
            uses(rank, dict.fromkeys(range(NICS), 2))
            assert rank.warnings == []


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "remedy",
    ["harp setup", pytest.param("sysctl", marks=(pytest.mark.slow, pytest.mark.sanitized))],
)
def test_each_nic_carries_link_after_remedy(rails: Rails, tmp_path: Path, remedy: str) -> None:
    all_up(rails)
    sites = [rails.site(tmp_path / str(host.index), host) for host in rails.lab.hosts]
    for host, site in zip(rails.lab.hosts, sites):
        ((level, text),) = arp_findings(host, site)
        assert level == "fault"
        assert "nic0 and nic1 are in one subnet, 10.78.0.0/24" in text
        assert "on nic0 and nic1 for the addresses of all of them (arp_ignore = 0)" in text
        apply_remedy(host, site, remedy)
        assert arp_findings(host, site) == [
            ("ok", "nic0 and nic1 are in 10.78.0.0/24; each answers for itself")
        ]
    links_open(sites)


@pytest.mark.slow
@pytest.mark.sanitized
def test_each_nic_carries_link_with_strict_rp_filter(rails: Rails, tmp_path: Path) -> None:
    all_up(rails)
    sites = [rails.site(tmp_path / str(host.index), host) for host in rails.lab.hosts]
    for host, site in zip(rails.lab.hosts, sites):
        host.run(["sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1"])
        found = arp_findings(host, site)
        assert [level for level, _ in found] == ["fault", "fault"]
        assert "and rp_filter = 1 keeps nic1 from answering ARP; run harp setup" in found[1][1]
        apply_remedy(host, site, "harp setup")
        assert [level for level, _ in arp_findings(host, site)] == ["ok"]
    links_open(sites)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("instances", [1, 2])
def test_frames_that_arrive_on_the_wrong_nic_are_accepted(
    rails: Rails, tmp_path: Path, instances: int
) -> None:
    """On both hosts, only nic0 answers ARP. So all frames arrive there."""
    for host in rails.lab.hosts:
        host.run(["sysctl", "-qw", "net.ipv4.conf.nic1.arp_ignore=8"])
    with pair(rails, tmp_path, keys=({"instances": instances, "flows": 1},) * 2) as scene:
        links = [link for nic in range(NICS) for link in scene.both_ways(nic)]
        for link in links:
            link.move(count=400)
        for host in rails.lab.hosts:
            assert int(host.read("/sys/class/net/nic1/statistics/rx_packets")) < 100
        with Traffic(links) as traffic:
            traffic.flows()
            with scene.down(0, 1):
                scene.leave(0, 1, 2 * NICS)
                traffic.flows()
            scene.use({nic: 2 for nic in range(NICS)})
            traffic.flows()
        for rank in scene.ranks:
            assert not any("the link " in line for line in rank.warnings)


def test_ranks_of_one_host_reach_each_other(rails: Rails, tmp_path: Path) -> None:
    """Their frames do not leave the host."""
    all_up(rails)
    host = rails.lab.hosts[0]
    sites = [rails.site(tmp_path / name, host) for name in ("one", "other")]
    with ExitStack() as stack:
        one, other = (stack.enter_context(Rank(site)).init(devices=NICS) for site in sites)
        for nic in range(NICS):
            connect(one, other, devices=(nic, nic)).move()
            connect(other, one, devices=(nic, nic)).move()
