# SPDX-License-Identifier: Apache-2.0
"""Ranks on hosts with several NICs: which NICs their links use, and traffic during faults."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

import pytest
from ranks import START_S, Link, Rank, Site, connect, wait_until

from harp.observe.statfile import Flow
from tools.hosts.lab import Lab
from tools.hosts.rails import Rails, add_rails
from tools.hosts.ranks import TooLate

COUNT = 4  # NICs of a host
MOVE_S = 40.0  # seconds for flows to move on a busy machine
STEP = (40, 65536, 60_000)  # messages of an exchange, their size, and its timeout in ms


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="subnets"),
        pytest.param(True, id="one subnet", marks=pytest.mark.slow),
    ],
)
def rails(request: pytest.FixtureRequest) -> Iterator[Rails]:
    """Two hosts with four NICs each: on four subnets, or all on one."""
    with Lab(hosts=2, wire="veth-1500") as lab:
        yield add_rails(lab, COUNT, one_subnet=request.param)


def all_up(rails: Rails) -> None:
    """Sets all NICs up, and waits for their carriers."""
    for host in rails.lab.hosts:
        for nic in range(rails.count):
            rails.set_link(host, nic, True)
    for host in rails.lab.hosts:
        for nic in range(rails.count):
            path = f"/sys/class/net/nic{nic}/operstate"
            wait_until(lambda: host.read(path).strip() == "up", MOVE_S, f"{path} is not up")


def parts_of_handle(handle: str) -> tuple[str, int]:
    """The address and the device of a handle; -1: it tells no device."""
    text = bytes.fromhex(handle)
    return socket.inet_ntoa(text[4:8]), text[56] - 1


def local_sites(shared: Site, count: int) -> list[Site]:
    """A site for each local rank of a host, all with the files of the shared site."""
    return [
        Site(
            shared.folder / f"rank{rank}",
            shared.prefix,
            {
                **shared.environment,
                "HARP_CONF_DIR": str(shared.folder),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(count),
            },
            shared.address,
        )
        for rank in range(count)
    ]


@contextmanager
def started(sites: Iterable[Site], devices: int = COUNT) -> Iterator[list[Rank]]:
    """A rank at each site, after init."""
    with ExitStack() as stack:
        ranks = [stack.enter_context(Rank(site)) for site in sites]
        for rank in ranks:
            rank.init(devices)
        yield ranks


def flows_of(rank: Rank, direction: str = "") -> dict[int, list[Flow]]:
    """The open flows of a rank's links by the index in its interface's name. direction: "S" or
    "R"; "": both."""
    found: dict[int, list[Flow]] = {}
    for one in rank.site.published():
        flows = [
            flow
            for flow in one.flows
            if flow.state == "ESTABLISHED" and flow.direction and direction in ("", flow.direction)
        ]
        if one.pid == rank.process.pid and flows:
            found[int(one.device.rpartition("nic")[2])] = flows
    return found


def uses(rank: Rank, nics: dict[int, int], direction: str = "") -> None:
    """Waits until the rank's links have exactly these numbers of flows on its NICs."""

    def found() -> dict[int, int]:
        return {nic: len(flows) for nic, flows in flows_of(rank, direction).items()}

    try:
        wait_until(lambda: found() == nics, MOVE_S, "not these flows", [rank])
    except TooLate as late:
        raise TooLate(f"flows by NIC: {found()}, expected {nics}: {late}") from None


class Traffic:
    """Messages on all given links at the same time, in a loop, until `stop`. Each link's ranks
    check every byte."""

    def __init__(self, links: Sequence[Link], step: tuple[int, int, int] = STEP) -> None:
        self.links, self.step = links, step
        self.rounds = 0
        self._end = threading.Event()
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _comms(self) -> dict[Rank, list[int]]:
        comms: dict[Rank, list[int]] = {}
        for link in self.links:
            comms.setdefault(link.sender, []).append(link.sends)
            comms.setdefault(link.receiver, []).append(link.receives)
        return comms

    def _run(self) -> None:
        comms = self._comms()
        try:
            while not self._end.is_set():
                for rank, numbers in comms.items():
                    rank.start("exchange", *self.step, *numbers)
                for rank in comms:
                    rank.finish(self.step[2] / 1e3 + 10)
                self.rounds += 1
        except BaseException as error:
            self._error = error

    def flows(self, timeout: float = MOVE_S) -> None:
        """Waits until two more rounds are complete."""
        limit = self.rounds + 2
        wait_until(
            lambda: self.rounds >= limit or self._error, timeout, "no traffic", list(self._comms())
        )
        assert self._error is None, (self._error, [rank.lines() for rank in self._comms()])

    def stop(self) -> None:
        """Ends after the current round. Raises what went wrong."""
        self._end.set()
        self._thread.join(self.step[2] / 1e3 + 20)
        assert not self._thread.is_alive(), [rank.lines() for rank in self._comms()]
        if self._error:
            raise self._error

    def failure(self, timeout: float) -> BaseException:
        """Waits for the error that ends the traffic."""
        self._thread.join(timeout)
        assert self._error, f"the traffic goes on, or hangs, after {timeout} s"
        return self._error

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with suppress(BaseException) if kind else ExitStack():
            self.stop()


@dataclass
class Pair:
    """A rank on each of the two hosts."""

    rails: Rails
    ranks: list[Rank]
    links: list[Link] = field(default_factory=list)

    def connect(self, sender: int, nic: int) -> Link:
        """A link from a rank to the other one, on this NIC of both."""
        link = connect(self.ranks[sender], self.ranks[1 - sender], devices=(nic, nic))
        self.links.append(link)
        return link

    def both_ways(self, nic: int) -> list[Link]:
        return [self.connect(0, nic), self.connect(1, nic)]

    def set_nic(self, host: int, nic: int, up: bool) -> None:
        self.rails.set_link(self.rails.lab.hosts[host], nic, up)

    @contextmanager
    def down(self, host: int, *nics: int) -> Iterator[None]:
        """These NICs of the host are down for the length of the block."""
        for nic in nics:
            self.set_nic(host, nic, False)
        try:
            yield
        finally:
            for nic in nics:
                self.set_nic(host, nic, True)

    def use(self, nics: dict[int, int]) -> None:
        """Waits until all links of both ranks have exactly these numbers of flows on the NICs."""
        for rank in self.ranks:
            uses(rank, nics)

    def leave(self, host: int, nic: int, flows: int = 1) -> None:
        """Waits until all flows of the host's rank have left the NIC."""

        def left() -> bool:
            found = flows_of(self.ranks[host])
            return nic not in found and sum(map(len, found.values())) == flows

        wait_until(left, MOVE_S, f"flows stay on NIC {nic}", self.ranks)

    def no_warnings(self) -> None:
        """No rank has warned of anything but a NIC that is down."""
        for rank in self.ranks:
            other = [line for line in rank.warnings if "HARP: the device packet:nic" not in line]
            assert other == [], other


@contextmanager
def pair(
    rails: Rails,
    folder: Path,
    environment: Optional[dict[str, str]] = None,
    nics: tuple[Sequence[int], Sequence[int]] = ((), ()),
    keys: Sequence[dict[str, object]] = ({}, {}),
) -> Iterator[Pair]:
    """A rank on each host, which drives all NICs of its files. keys: of each host's files."""
    all_up(rails)
    sites = [
        rails.site(folder / str(host.index), host, some, **more)
        for host, some, more in zip(rails.lab.hosts, nics, keys)
    ]
    for site in sites:
        site.environment.update(environment or {})
    with ExitStack() as stack:
        ranks = [stack.enter_context(Rank(site)) for site in sites]
        for rank, some in zip(ranks, nics):
            rank.init(len(some) or rails.count)
        yield Pair(rails, ranks)


__all__ = ["COUNT", "MOVE_S", "START_S", "Pair", "Traffic", "pair", "rails"]
