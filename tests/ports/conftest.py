# SPDX-License-Identifier: Apache-2.0
"""Probes with ports, and the hosts of the probes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from packet_ports import Hosts, Make
from port_probe import PROBE, Probe
from xdp_ports import opened

from tools.hosts.lab import Host, Lab


def _end_well(probe: Probe) -> None:
    """Checks the exit status, which shows a sanitizer's finding or a crash."""
    status = probe.end()
    assert status in (0, -9), f"the probe ended with {status}"


@pytest.fixture
def probe() -> Iterator[Callable[..., Probe]]:
    """Makes probes; each must end well unless the test killed it."""
    assert PROBE.exists(), f"{PROBE} is not built: meson compile -C {PROBE.parents[1]}"
    made: list[Probe] = []

    def make(host: Host | None = None, *wrapper: str) -> Probe:
        made.append(Probe(host, wrapper))
        return made[-1]

    yield make
    with ExitStack() as ends:  # ends all of them, also if one fails
        for one in made:
            ends.callback(_end_well, one)


def _know_each_other(lab: Lab) -> None:
    """Adds permanent neighbour entries, so that the kernels send no ARP that tests would count."""
    for host in lab.hosts:
        for other in lab.hosts:
            for address in (other.address, other.own_address):
                if other is not host:
                    args = ["ip", "neigh", "replace", address, "lladdr", other.mac]
                    host.run([*args, "nud", "permanent", "dev", host.interface])


@pytest.fixture(scope="session")
def _labs() -> Iterator[Callable[[str], Lab]]:
    made: dict[str, Lab] = {}

    def make(wire: str) -> Lab:
        if wire not in made:
            made[wire] = Lab(hosts=2, wire=wire).__enter__()
            _know_each_other(made[wire])
        return made[wire]

    yield make
    for lab in made.values():
        lab.close()


@pytest.fixture
def hosts(_labs: Callable[[str], Lab]) -> Callable[[str], list[Host]]:
    """Two hosts on a wire, made once for each kind of wire and session."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    return lambda wire: list(_labs(wire).hosts)


@pytest.fixture
def wire() -> str:
    """The kind of wire between the two hosts; tests may choose another."""
    return "veth-1500"


@pytest.fixture
def pair(probe: Make, hosts: Hosts, wire: str) -> tuple[Probe, Probe]:
    """Two ports with their own addresses, one queue each."""
    ends = []
    for host in hosts(wire):
        one = probe(host)
        one.open(f"packet:{host.interface}", address=f"{host.own_address}/24")
        ends.append(one)
    return ends[0], ends[1]


@pytest.fixture
def shared(probe: Make, hosts: Hosts) -> tuple[Probe, Probe]:
    """Two ports on the kernels' own addresses."""
    ends = []
    for host in hosts("veth-1500"):
        one = probe(host)
        one.open(f"packet:{host.interface}")
        ends.append(one)
    return ends[0], ends[1]


@pytest.fixture
def sender() -> str:
    return "auto"


@pytest.fixture
def xdp_pair(probe: Make, hosts: Hosts, wire: str, sender: str) -> tuple[Probe, Probe]:
    """Two ports with their own addresses."""
    device = f"xdp:eth0,send={sender}"
    first, second = hosts(wire)
    return opened(probe, first, device), opened(probe, second, device)
