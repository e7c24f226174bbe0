# SPDX-License-Identifier: Apache-2.0
"""Another host has HARP's own address, or claims it: HARP declines, names that host, and does not
answer ARP for the address (RFC 5227)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import SYSTEM_ERROR, Failed, Rank, Site, packet_site, wait_until

from tools.hosts.lab import Host, Lab

# Requests an address by ARP all the time, from 10.77.0.99. Prints the kind and the sender address
# of each ARP packet from the host with this hardware address. Ends at the end of its input.
WATCH = """
import select, socket, sys
address, mac = socket.inet_aton(sys.argv[1]), bytes.fromhex(sys.argv[2].replace(":", ""))
own = bytes.fromhex("027700000099")
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
wire.bind(("eth0", 0x0806))
ask = b"\\xff" * 6 + own + bytes.fromhex("08060001080006040001") + own
ask += socket.inet_aton("10.77.0.99") + bytes(6) + address
print("watching", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    wire.send(ask)
    while select.select([wire], [], [], 0.01)[0]:
        frame = wire.recv(2048)
        if frame[6:12] == mac:
            print(frame[21], socket.inet_ntoa(frame[28:32]), flush=True)
"""
REQUEST, REPLY = "1", "2"
NOBODY = "0.0.0.0"

# Broadcasts one ARP announcement of the address from this host.
CLAIM = """
import socket, sys
address, mac = socket.inet_aton(sys.argv[1]), bytes.fromhex(sys.argv[2].replace(":", ""))
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
wire.bind(("eth0", 0))
wire.send(b"\\xff" * 6 + mac + bytes.fromhex("08060001080006040001") + mac + address + bytes(6)
          + address)
"""


class Watch:
    """Records a host's ARP packets on another host, which requests an address."""

    def __init__(self, at: Host, address: str, of: Host) -> None:
        args = [sys.executable, "-u", "-c", WATCH, address, of.mac]
        self.process = at.popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout
        assert self.process.stdout.readline() == "watching\n"

    def packets(self) -> list[tuple[str, str]]:
        """The kind and the sender of each packet so far."""
        said, _ = self.process.communicate("end\n", timeout=30)
        return [(line.split()[0], line.split()[1]) for line in said.splitlines()]


@contextlib.contextmanager
def kernel_has(host: Host, address: str) -> Iterator[None]:
    host.run(["ip", "addr", "add", f"{address}/24", "dev", host.interface])
    try:
        yield
    finally:
        host.run(["ip", "addr", "del", f"{address}/24", "dev", host.interface])


def declines(rank: Rank) -> str:
    """The only warning of a rank whose init fails."""
    with pytest.raises(Failed) as failure:
        rank.init()
    assert (failure.value.call, failure.value.code) == ("init", SYSTEM_ERROR)
    (warning,) = rank.warnings
    return warning


def test_address_of_other_host_is_declined(lab: Lab, tmp_path: Path) -> None:
    host, other = lab.hosts
    site = packet_site(tmp_path, host, own_address=True)
    with kernel_has(other, host.own_address), Rank(site) as rank:
        watch = Watch(other, host.own_address, host)
        warning = declines(rank)
        packets = watch.packets()
        assert not site.published()
    assert f"packet:eth0: another host has the address {host.own_address}: {other.mac}" in warning
    assert f"take it from that host, or set an address in {tmp_path}/ztcp0.conf" in warning
    assert set(packets) == {(REQUEST, NOBODY)}
    with Rank(site) as rank:  # this validates the silence above
        watch = Watch(other, host.own_address, host)
        rank.init()
        packets = watch.packets()
    assert {(REQUEST, NOBODY), (REQUEST, host.own_address)} <= set(packets)
    announced = packets.index((REQUEST, host.own_address))
    assert (REPLY, host.own_address) not in packets[:announced]


@pytest.mark.parametrize("instances", [1, 2])
def test_every_instance_declines_address_of_other_host(
    lab: Lab, tmp_path: Path, instances: int
) -> None:
    """All instances receive the reply, and none of them sends one."""
    host, other = lab.hosts
    site = packet_site(tmp_path, host, own_address=True, instances=instances)
    with kernel_has(other, host.own_address), Rank(site) as rank:
        watch = Watch(other, host.own_address, host)
        assert other.mac in declines(rank)
        assert set(watch.packets()) == {(REQUEST, NOBODY)}


def test_two_hosts_starting_with_one_address_conflict(lab: Lab, tmp_path: Path) -> None:
    """At most one of them gets it, in any order of their probes."""
    sites = [Site(tmp_path / str(host.index), host.command([])) for host in lab.hosts]
    for site in sites:
        site.configure("device = packet:eth0\naddress = 10.77.0.150/24\n")
    with Rank(sites[0]) as one, Rank(sites[1]) as two:
        ranks = (one, two)
        for rank in ranks:
            rank.start("init")
        declined = []
        for rank, host in zip(ranks, reversed(lab.hosts)):
            try:
                rank.finish()
            except Failed:
                (warning,) = rank.warnings
                assert f"another host has the address 10.77.0.150: {host.mac}" in warning
                declined.append(rank)
        assert declined


def test_restart_after_kill_is_no_address_conflict(lab: Lab, tmp_path: Path) -> None:
    """A rank restarts after a crash, while another rank of the host uses the same interface."""
    host = lab.hosts[0]
    site = packet_site(tmp_path / "0", host, own_address=True)
    beside = Site(tmp_path / "1", host.command([]))
    beside.configure("device = packet:eth0\naddress = 10.77.0.150/24\n")
    with Rank(beside) as neighbour:
        neighbour.init()
        for _ in range(2):
            with Rank(site) as rank:
                rank.init()
                assert rank.warnings == []
                rank.process.kill()
                rank.wait(10)


def test_kernel_address_is_not_probed(lab: Lab, tmp_path: Path) -> None:
    """The kernel guards its own address. HARP's own address takes three probes and an
    announcement."""
    for own in (False, True):
        site = packet_site(tmp_path / str(own), lab.hosts[0], own_address=own)
        with Rank(site) as rank:
            rank.init()
            (process,) = site.published()
            assert process.instances[0]["arp_requests_out"] == (4 if own else 0)


def test_later_address_conflict_is_warned_of_once(lab: Lab, tmp_path: Path) -> None:
    """RFC 5227, 2.4: one defence and one warning for any number of claims; HARP continues."""
    host, other = lab.hosts
    site = packet_site(tmp_path, host, own_address=True)
    site.environment["HARP_DEBUG"] = "1"
    with Rank(site) as rank:
        rank.init()

        def counts() -> dict[str, int]:
            (process,) = site.published()
            return process.instances[0]

        for number in range(1, 4):
            other.run([sys.executable, "-c", CLAIM, host.own_address, other.mac])
            late = f"conflict {number} was not counted"
            wait_until(lambda n=number: counts()["arp_conflicts"] == n, 10, late, [rank])
        mark = f"another host has begun to use {host.own_address}: {other.mac}"
        rank.wait_for_line(mark, 10)
        assert counts()["arp_requests_out"] == 3 + 1 + 1
        rank.do("finalize")
        assert len([line for line in rank.lines(mark) if "HARP[" in line]) == 1
