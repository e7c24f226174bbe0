# SPDX-License-Identifier: Apache-2.0
"""Ranks over xdp devices: faults, a killed rank, and the loss of carrier or device."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import Failed, Rank, Site, connect, packet_site, wait_until
from several_nics import local_sites, started

from harp import paths
from tools.hosts.jobs import all_reduce, job
from tools.hosts.lab import Host, Lab

TIMEOUT_MS = 1500
SIZE = 65536

pytestmark = pytest.mark.skipif(
    not (paths.build_dir() / "dpdk_glue" / "xdp_program.o").exists(),
    reason="this build has no XDP (no clang)",
)


def listeners(host: Host) -> str:
    """The TCP ports on which the host's kernel listens."""
    return host.run(["ss", "-Hltn"]).stdout


def sites_of(lab: Lab, folder: Path, **keys: object) -> list[Site]:
    keys = {"timeout_ms": TIMEOUT_MS, **keys}
    return [
        packet_site(folder / str(host.index), host, port="xdp", **keys)  # type: ignore[arg-type]
        for host in lab.hosts
    ]


@pytest.fixture
def fresh_lab() -> Iterator[Lab]:
    """A lab that a test may damage."""
    with Lab(hosts=2, wire="veth-1500") as made:
        yield made


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.parametrize(
    "own_address",
    [
        pytest.param(False, id="kernel", marks=(pytest.mark.slow, pytest.mark.sanitized)),
        pytest.param(True, id="own"),
    ],
)
def test_job_survives_faults_of_its_device(lab: Lab, tmp_path: Path, own_address: bool) -> None:
    faults = "drop=0.005,duplicate=0.005,corrupt=0.002,reorder=0.01,seed=7"
    sites = sites_of(lab, tmp_path, own_address=own_address, faults=faults)
    with job(sites, lab.hosts[0].address, all_reduce("256K", 400, 2, "--timeout", 60)) as running:
        running.ends_well()
        assert running.count(0, "tcp_retransmits") > 0
        assert (running.count(0, "xdp_sockets"), running.count(0, "xdp_zero_copy")) == (1, 0)


def test_killed_rank_leaves_nothing_and_fails_its_peer(lab: Lab, tmp_path: Path) -> None:
    sites = sites_of(lab, tmp_path)
    victim_host = lab.hosts[1]
    with Rank(sites[0]) as survivor, Rank(sites[1]) as victim:
        survivor.init()
        victim.init()
        link = connect(victim, survivor)
        link.move()
        assert victim_host.has_xdp_program() and listeners(victim_host)
        survivor.start("receive", link.receives, 4, SIZE, 10 * TIMEOUT_MS)
        killed = victim.signal(signal.SIGKILL)
        with pytest.raises(Failed):
            survivor.finish(TIMEOUT_MS / 1e3 + 10)
        assert time.monotonic() - killed < TIMEOUT_MS / 1e3 + 2
        (warning,) = survivor.warnings
        assert f"{sites[1].address}:" in warning
        traces = sites[0].run_folder
        wait_until(lambda: list(traces.glob("*.trace")), 10, "no trace was written", [survivor])
        victim.wait(10)
        assert not victim_host.has_xdp_program() and not listeners(victim_host)
        with Rank(sites[1]) as again:
            again.init()
            connect(again, survivor).move()
            assert again.warnings == []


def test_job_continues_after_loss_of_carrier(fresh_lab: Lab, tmp_path: Path) -> None:
    sites = sites_of(fresh_lab, tmp_path, timeout_ms=20_000)
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        one.init()
        other.init()
        link = connect(other, one)
        link.move()
        fresh_lab.hosts[1].set_link(False)
        link.start(8, SIZE, 30_000)
        wait_until(lambda: other.warnings, 20, "the loss was not noticed", [one, other])
        fresh_lab.hosts[1].set_link(True)
        link.finish(40)
        # The other end of the veth loses its carrier, too.
        assert other.warnings
        for warning in [*one.warnings, *other.warnings]:
            assert "the device xdp:eth0 " in warning and "wait until it is back" in warning


def test_removed_device_fails_requests_in_time(fresh_lab: Lab, tmp_path: Path) -> None:
    host = fresh_lab.hosts[1]
    sites = sites_of(fresh_lab, tmp_path)
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        one.init()
        other.init()
        link = connect(other, one)
        link.move()
        host.run(["ip", "link", "del", host.interface])
        other.start("send", link.sends, 4, 4 << 20, 10 * TIMEOUT_MS)
        with pytest.raises(Failed):
            other.finish(TIMEOUT_MS / 1e3 + 10)
        assert any(f"xdp:{host.interface}" in line for line in other.lines()), other.lines()
        other.do("finalize")


def test_ranks_share_an_interface(lab: Lab, tmp_path: Path) -> None:
    """Two ranks of each host use one file. The first one has the AF_XDP sockets."""
    sites = sites_of(lab, tmp_path)
    ranks = [site for site in sites for _ in range(2)]
    with job(ranks, lab.hosts[0].address, all_reduce("256K", 200, 1)) as running:
        running.await_messages(1)
        for site in sites:
            processes = site.published()
            assert sorted(one.totals["xdp_sockets"] for one in processes) == [0, 1]
            assert all("eth0" in one.about for one in processes)
        running.ends_well()


def test_each_rank_has_the_sockets_of_its_home_nic(lab: Lab, tmp_path: Path) -> None:
    """A rank opens all NICs. It leaves the AF_XDP sockets of each other one to another rank."""
    lab.hosts[0].run(["ip", "link", "add", "nic1", "type", "veth", "peer", "name", "far1"])
    try:
        lab.hosts[0].run(["ip", "address", "add", "10.78.0.1/24", "dev", "nic1"])
        for name in ("nic1", "far1"):
            lab.hosts[0].run(["ip", "link", "set", name, "up"])
        shared = packet_site(tmp_path, lab.hosts[0], port="xdp")
        shared.configure("device = xdp:nic1\naddress = kernel\n", "ztcp1.conf")
        with started(local_sites(shared, 2), devices=2) as ranks:
            homes = [one for rank in ranks for one in rank.site.published()]
            assert sorted(one.device for one in homes) == ["xdp:eth0", "xdp:nic1"]
            assert [one.totals["xdp_sockets"] for one in homes] == [1, 1]
    finally:
        lab.hosts[0].run(["ip", "link", "del", "nic1"])


def test_second_rank_declines_where_the_device_has_options(lab: Lab, tmp_path: Path) -> None:
    """Both by one file and by a file of its own."""
    host = lab.hosts[0]
    device = f"xdp:{host.interface},mode=copy"
    site = packet_site(tmp_path / "one", host, device=device)
    other = packet_site(tmp_path / "other", host, device=device)
    with Rank(site) as first:
        first.init()
        for place, part in ((site, "are claimed"), (other, "use packet:eth0")):
            with Rank(place) as second:
                with pytest.raises(Failed):
                    second.init()
                (warning,) = second.warnings
                assert part in warning
        assert first.warnings == [] and host.has_xdp_program()
