# SPDX-License-Identifier: Apache-2.0
"""A process needs no capability after init: ranks drop all of theirs and continue as an
unprivileged user. They open and replace links, and end cleanly."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Optional

import pytest
from ranks import Failed, Rank, Site, connect, packet_site, wait_until

from harp.observe.statfile import Flow
from tools.hosts.jobs import Joint
from tools.hosts.lab import Lab
from tools.hosts.ranks import ethdev_site

USER = 4711  # a user id without an account
LINKS = 20  # in each direction: more than the local ports held at first

Start = Callable[["list[Site]"], "list[Rank]"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A world-writable folder. Only the owner may enter pytest's folders."""
    with tempfile.TemporaryDirectory(prefix="harp-test-") as made:
        Path(made).chmod(0o777)
        yield Path(made)


def sites_by(joint: str, lab: Lab, folder: Path) -> list[Site]:
    """The sites of two ranks; joint: the network between them."""
    if joint == "ethdev":
        return [ethdev_site(folder / str(end), folder / "vhost", end) for end in (1, 2)]
    own = joint == "own address"
    return [packet_site(folder / str(host.index), host, own) for host in lab.hosts]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts ranks at the sites; root runs their init."""
    with ExitStack() as stack:

        def make(sites: list[Site]) -> list[Rank]:
            for site in sites:
                site.run_folder.chmod(0o777)
            ranks = [stack.enter_context(Rank(site)) for site in sites]
            return [rank.init() for rank in ranks]

        yield make


def drop(rank: Rank) -> None:
    """Drops a rank's privileges and checks all its threads, including HARP's."""
    rank.do("drop", USER)
    threads = sorted(Path(f"/proc/{rank.process.pid}/task").iterdir())
    assert len(threads) > 1, "there is no worker thread"
    for thread in threads:
        text = (thread / "status").read_text()
        status = dict(line.split(":\t", 1) for line in text.splitlines())
        assert set(status["Uid"].split()) == {str(USER)}
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[name], 16) == 0, (thread.name, name)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("joint", ["kernel address", "own address", "ethdev"])
def test_no_capability_is_needed_after_init(
    joint: str, lab: Lab, folder: Path, start: Start
) -> None:
    one, other = start(sites_by(joint, lab, folder))
    before = connect(one, other)
    before.move()
    for rank in (one, other):
        drop(rank)
    before.move(count=32, size=1 << 20)
    links = [connect(*ends) for ends in [(one, other), (other, one)] * LINKS]
    for link in links:
        link.move()
    before.move()
    for link in links[: LINKS // 2]:
        link.sender.do("close", link.sends)
        link.receiver.do("close", link.receives)
    for rank in (one, other):
        rank.do("finalize")
        # The end of the first rank takes the carrier of an ethdev pair down.
        assert [
            text for text in rank.warnings if rank is one or "Network is down" not in text
        ] == []
        assert rank.site.published() == [] and not list(rank.site.run_folder.iterdir())


def test_init_without_capability_is_refused(lab: Lab, folder: Path, start: Start) -> None:
    """An init after the drop is refused, as for any process without CAP_NET_RAW."""
    (rank,) = start([packet_site(folder / "0", lab.hosts[0])])
    drop(rank)
    rank.do("finalize")
    with pytest.raises(Failed):
        rank.do("init")
    (warning,) = rank.warnings
    assert "packet:eth0: not allowed to open a packet socket; give the process CAP_NET" in warning


def test_privileged_ports_cannot_be_added_without_capability(
    lab: Lab, folder: Path, start: Start
) -> None:
    """Ports below 1024 need CAP_NET_BIND_SERVICE, so only the ports held already can be used."""
    hosts = {str(host.index): host for host in lab.hosts}
    sites = [packet_site(folder / name, hosts[name], tcp_ports="600-663") for name in hosts]
    one, other = start(sites)
    link = connect(one, other)
    drop(other)
    link.move()
    with pytest.raises(Failed):
        for _ in range(64):
            other.listen()
    (warning,) = other.warnings
    assert "cannot listen on packet:eth0: Permission denied; free local ports or" in warning
    link.move()


def test_dead_flow_is_replaced_without_capabilities(lab: Lab, folder: Path, start: Start) -> None:
    control = folder / "faults"
    control.touch()
    sites = [
        packet_site(folder / "0", lab.hosts[0], faults=f"tso=1,control={control}", flows=2),
        packet_site(folder / "1", lab.hosts[1], flows=2),
    ]
    joint = Joint(sites, lab.hosts[0].address, control)
    one, other = start(sites)
    link = connect(one, other)
    link.move()
    for rank in (one, other):
        drop(rank)

    def sending(number: int) -> Optional[Flow]:
        flows = [flow for process in sites[0].published() for flow in process.flows]
        found = [flow for flow in flows if flow.direction == "S" and flow.flow == number]
        return found[0] if found else None

    def replaced() -> int:
        (process,) = sites[0].published()
        return process.totals["flows_replaced"]

    joint.blackhole(wait_until(lambda: sending(0), 20, "no flow is published"), "both")
    link.start(400, 1 << 20, 20000)
    wait_until(replaced, 15, "the flow is not replaced", [one, other])
    joint.impair()
    link.finish(30)
    link.move()
    assert replaced() == 1
    for rank in (one, other):
        rank.do("finalize")
        assert rank.warnings == []
