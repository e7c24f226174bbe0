# SPDX-License-Identifier: Apache-2.0
"""Hosts with several NICs: each listen and connect uses the NIC that the device's index, the peer's
handle and the addresses name."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from ranks import Rank, connect
from several_nics import (
    COUNT,
    all_up,
    flows_of,
    local_sites,
    pair,
    parts_of_handle,
    rails,
    started,
    uses,
)

from tools.hosts.lab import Host
from tools.hosts.rails import Rails
from tools.hosts.ranks import Site

__all__ = ["rails"]

ALL = set(range(COUNT))
MESSAGES, SIZE = 8, 65536


def without_device(handle: str) -> str:
    """The handle as a release without devices writes it."""
    return handle[:112] + "0000" + handle[116:]


def own_site(folder: Path, rails: Rails, host: Host, own: set[int]) -> Site:
    """A site whose files of these NICs have addresses of their own, so they are exclusive."""
    site = rails.site(folder, host)
    for nic in own:
        network, _, last = rails.address(host, nic).rpartition(".")
        text = f"device = packet:nic{nic}\naddress = {network}.{int(last) + 20}/24\n"
        site.configure(text, f"ztcp{nic}.conf")
    return site


def home_of(rank: Rank) -> int:
    (line,) = rank.lines("this rank drives")
    return int(line.partition("its home is device ")[2].partition(";")[0])


def driven_by(rank: Rank) -> int:
    (line,) = rank.lines("this rank drives")
    return int(line.partition("drives ")[2].split()[0])


@pytest.mark.quick_cases(1)
def test_every_device_of_every_rank_uses_its_nic(rails: Rails, tmp_path: Path) -> None:
    all_up(rails)
    first, second = rails.lab.hosts
    sites = [rails.site(tmp_path / str(host.index), host) for host in rails.lab.hosts]
    with ExitStack() as stack:
        ranks, peers = (
            stack.enter_context(started(local_sites(site, COUNT))) for site in sites
        )  # fmt: skip
        for nic in range(COUNT):
            before = [rails.bytes_in(second, one) for one in range(COUNT)]
            for rank, peer in zip(ranks, peers):
                number, handle = peer.listen(nic)
                assert parts_of_handle(handle) == (rails.address(second, nic), nic)
                connect(rank, peer, (number, handle), devices=(nic, nic)).move(MESSAGES, SIZE)
            for rank, peer in zip(ranks, peers):
                uses(rank, dict.fromkeys(range(nic + 1), 1))
                uses(peer, dict.fromkeys(range(nic + 1), 1))
                (flow,) = flows_of(rank)[nic]
                assert flow.local.startswith(rails.address(first, nic) + ":")
                assert flow.peer.startswith(rails.address(second, nic) + ":")
            grown = [rails.bytes_in(second, one) - before[one] for one in range(COUNT)]
            assert grown[nic] > COUNT * MESSAGES * SIZE
            assert all(grown[one] < SIZE for one in range(COUNT) if one != nic), grown
        assert [rank.warnings for rank in (*ranks, *peers)] == [[]] * 2 * COUNT


def test_nic_of_listener_decides(rails: Rails, tmp_path: Path) -> None:
    """The device of connect differs from that of listen, as with NCCL's crossNic."""
    with pair(rails, tmp_path) as scene:
        one, other = scene.ranks
        for theirs in range(COUNT):
            for ours in ALL - {theirs}:
                connect(one, other, devices=(ours, theirs)).move()
            for rank in (one, other):
                uses(rank, dict.fromkeys(range(theirs + 1), COUNT - 1))
        scene.no_warnings()


def test_handle_without_device_uses_reachable_nic(rails: Rails, tmp_path: Path) -> None:
    """The peer is of an older release: on one subnet the device decides, else the subnet."""
    with pair(rails, tmp_path) as scene:
        one, other = scene.ranks
        number, handle = other.listen(2)
        connect(one, other, (number, without_device(handle)), devices=(1, 2)).move()
        uses(one, {1 if rails.one_subnet else 2: 1})
        uses(other, {2: 1})
        scene.no_warnings()


def test_one_device_uses_home_nic(rails: Rails, tmp_path: Path) -> None:
    """HARP_DEVICES=1: a rank has one device, and each rank of a host a NIC of its own."""
    all_up(rails)
    sites = [rails.site(tmp_path / str(host.index), host) for host in rails.lab.hosts]
    for site in sites:
        site.environment["HARP_DEVICES"] = "1"
    with ExitStack() as stack:
        ranks, peers = (
            stack.enter_context(started(local_sites(site, COUNT), devices=1)) for site in sites
        )
        for nic, (rank, peer) in enumerate(zip(ranks, peers)):
            connect(rank, peer).move()
            uses(rank, {nic: 1})
            uses(peer, {nic: 1})
            assert rank.warnings == peer.warnings == []


def test_rank_with_one_exclusive_nic_serves_all_devices_with_it(
    rails: Rails, tmp_path: Path
) -> None:
    all_up(rails)
    sites = [
        own_site(tmp_path / str(host.index), rails, host, ALL) for host in rails.lab.hosts
    ]  # fmt: skip
    with ExitStack() as stack:
        ranks, peers = (stack.enter_context(started(local_sites(site, COUNT))) for site in sites)
        for home, (rank, peer) in enumerate(zip(ranks, peers)):
            assert (home_of(rank), driven_by(rank)) == (home_of(peer), driven_by(peer)) == (home, 1)
            for device in range(COUNT):
                number, handle = peer.listen(device)
                assert parts_of_handle(handle)[1] == home
                connect(rank, peer, (number, handle), devices=(device, device)).move()
            uses(rank, {home: COUNT})
            uses(peer, {home: COUNT})
        if rails.one_subnet:
            connect(ranks[0], peers[1], devices=(3, 2)).move()
            uses(ranks[0], {0: COUNT + 1})
            uses(peers[1], {1: COUNT + 1})
        assert [rank.warnings for rank in (*ranks, *peers)] == [[]] * 2 * COUNT


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("own", [ALL, {1, 3}], ids=["exclusive", "mixed"])
def test_only_rank_of_host_drives_all_nics(rails: Rails, tmp_path: Path, own: set[int]) -> None:
    all_up(rails)
    sites = [
        local_sites(own_site(tmp_path / str(host.index), rails, host, own), 1)[0]
        for host in rails.lab.hosts
    ]
    with started(sites) as (one, other):
        assert driven_by(one) == driven_by(other) == COUNT
        for nic in range(COUNT):
            assert parts_of_handle(other.listen(nic)[1])[1] == nic
            connect(one, other, devices=(nic, nic)).move()
            connect(other, one, devices=((nic + 1) % COUNT, nic)).move()
        for rank in (one, other):
            uses(rank, dict.fromkeys(ALL, 2))
        assert one.warnings == other.warnings == []


def test_ranks_of_mixed_host_share_what_is_shareable(rails: Rails, tmp_path: Path) -> None:
    """Of two exclusive NICs, each of two ranks drives one; both drive the other two NICs."""
    all_up(rails)
    sites = [own_site(tmp_path / str(host.index), rails, host, {1, 3}) for host in rails.lab.hosts]
    with ExitStack() as stack:
        ranks, peers = (stack.enter_context(started(local_sites(site, 2))) for site in sites)
        served = []
        for rank, peer in zip(ranks, peers):
            listeners = [peer.listen(device) for device in range(COUNT)]
            used = [parts_of_handle(handle)[1] for _, handle in listeners]
            served.append(used)
            assert driven_by(rank) == driven_by(peer) == 3
            assert used[0] == 0 and used[2] == 2
            assert sorted([used[1] == 1, used[3] == 3]) == [False, True]
            for device, listener in enumerate(listeners):
                connect(rank, peer, listener, devices=(device, device)).move()
            uses(rank, Counter(used))
            uses(peer, Counter(used))
        assert {used[1] for used in served} | {used[3] for used in served} >= {1, 3}
        assert [rank.warnings for rank in (*ranks, *peers)] == [[]] * 4
