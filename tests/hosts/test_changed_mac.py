# SPDX-License-Identifier: Apache-2.0
"""An interface gets another MAC address or loses its IP address while a job runs: the job fails
with a line that says so, and neighbours are not misled."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ranks import Failed, Link, Rank, connect, packet_site, wait_until

from tools.hosts.lab import Host, Lab

NEW = "02:77:00:00:aa:01"
TIMEOUT_MS = 3000
CHANGED = re.compile(
    r"HARP: the device (packet|xdp):eth0 no longer has its MAC or IP address at "
    r"\d\d:\d\d:\d\d UTC\. Links use "
    rf"another NIC, or wait until it is back, at most timeout_ms \({TIMEOUT_MS}\); set the old "
    r"address again, or restart the job\.$"
)
BACK = re.compile(r"HARP: the device packet:eth0 is back after \d+\.\d s\. Links use it again\.$")


def set_mac(host: Host, mac: str) -> None:
    host.run(["ip", "link", "set", host.interface, "address", mac])


def reaches(host: Host, peer: Host) -> bool:
    """Whether the peer's kernel answers that a port is closed."""
    program = f"import socket; socket.create_connection(({peer.address!r}, 9), 10)"
    done = host.run([sys.executable, "-c", program], check=False)
    return "ConnectionRefusedError" in done.stderr


def neighbour(host: Host, of: Host) -> str:
    """What the kernel of a host knows of another one."""
    return host.run(["ip", "neigh", "show", of.address]).stdout


@contextmanager
def job(lab: Lab, folder: Path, **keys: object) -> Iterator[tuple[Rank, Rank, Link]]:
    """A rank on each host, and a link from the second one that has moved a message."""
    sites = [packet_site(folder / str(one.index), one, **keys) for one in lab.hosts]
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        one.init()
        other.init()
        link = connect(other, one)
        link.move()
        yield one, other, link


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.parametrize("scheme", ["packet", "xdp"])
def test_changed_mac_fails_job_and_spares_neighbours(lab: Lab, tmp_path: Path, scheme: str) -> None:
    host, peer = lab.hosts
    with job(lab, tmp_path, port=scheme, timeout_ms=TIMEOUT_MS) as (one, _, link):
        one.start("receive", link.receives, 1, 64, 60_000)
        set_mac(host, NEW)
        try:
            assert reaches(host, peer) and NEW in neighbour(peer, host)
            limit = time.monotonic() + 10
            with pytest.raises(Failed):
                one.finish(30)
            while time.monotonic() < limit:
                assert NEW in neighbour(peer, host)
                time.sleep(0.1)
            assert CHANGED.search(one.warnings[0]), one.lines()
            assert reaches(host, peer)
        finally:
            set_mac(host, host.mac)


@pytest.mark.slow
def test_job_goes_on_when_mac_is_set_back(lab: Lab, tmp_path: Path) -> None:
    host = lab.hosts[0]
    with job(lab, tmp_path, timeout_ms=60_000) as (one, other, link):
        one.start("receive", link.receives, 4, 65536, 60_000)
        set_mac(host, NEW)
        try:
            time.sleep(1)
        finally:
            set_mac(host, host.mac)
        other.do("send", link.sends, 4, 65536, 60_000, timeout=60)
        one.finish(60)
        assert "no longer has its MAC or IP address" in one.warnings[0]

        def said() -> bool:
            link.move(1, 64)  # a rank prints the lines when it next calls HARP
            return any(BACK.search(line) for line in one.lines())

        wait_until(said, 20, "no line tells that it is back", [one])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["packet", "xdp"])
def test_job_ends_when_the_kernel_loses_the_address(lab: Lab, tmp_path: Path, scheme: str) -> None:
    """Another host may have it now. A second address of the interface changes nothing."""
    host = lab.hosts[0]
    with job(lab, tmp_path, port=scheme, timeout_ms=TIMEOUT_MS) as (one, _, link):
        address = ["ip", "address", "{}", f"{host.address}/{host.prefix}", "dev", host.interface]
        host.run([*address[:2], "add", "10.99.1.1/24", *address[4:]])
        one.start("receive", link.receives, 1, 64, 60_000)
        time.sleep(0.5)
        assert one.warnings == []
        host.run([*address[:2], "del", *address[3:]])
        try:
            with pytest.raises(Failed):
                one.finish(30)
            assert CHANGED.search(one.warnings[0]), one.lines()
        finally:
            host.run(["ip", "address", "flush", "dev", host.interface])
            host.run([*address[:2], "add", *address[3:]])
