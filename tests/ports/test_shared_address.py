# SPDX-License-Identifier: Apache-2.0
"""Packet ports share the kernel's address, and reserve TCP ports in the kernel."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator

import pytest
from packet_ports import (
    Hosts,
    Make,
    kernel_is_silent,
    kernel_moves_bytes,
    listening,
    tcp_frame,
)
from port_probe import HEADERS, PortError, Probe, arp_request, icmp_unreachable

from tools.hosts.ranks import wait_until


def test_kernel_does_not_answer_reserved_ports(shared: tuple[Probe, Probe], hosts: Hosts) -> None:
    a, b = shared
    host = hosts("veth-1500")[1]
    local, _ = kernel_is_silent(a, b, host, 7)
    b.do("close")
    assert local not in listening(host)


def test_kernel_resets_unreserved_port(shared: tuple[Probe, Probe], hosts: Hosts) -> None:
    """An unreserved port draws a reset. This validates the test above."""
    a, b = shared
    host = hosts("veth-1500")[1]
    before = host.counters()["TcpOutRsts"]
    a.send(tcp_frame(a, b, dport=45))
    wait_until(lambda: host.counters()["TcpOutRsts"] == before + 1, 20, "the kernel sends no reset")


def test_filter_of_a_shared_address(shared: tuple[Probe, Probe]) -> None:
    a, b = shared
    local = b.reserve()
    quoted = tcp_frame(b, a, sport=local)
    addresses = (a.info["address"], b.info["address"], a.info["mac"], b.info["mac"])
    a.send(tcp_frame(a, b, b"not ours", dport=(local + 1000) % 30000 + 1024))
    a.send(tcp_frame(a, b, b"fragment", dport=local, fragment=100))
    a.send(tcp_frame(a, b, b"ours", dport=local, complete=True))
    a.send(icmp_unreachable(*addresses, quoted))
    echo = bytearray(icmp_unreachable(*addresses, quoted))
    echo[34] = 8
    a.send(bytes(echo))
    a.send(arp_request(a.info["mac"], a.info["address"], b.info["address"]))
    frames = b.receive_all(3)
    kinds = [f.data[12:14] + f.data[23:24] for f in frames if f.data[20:22] != b"\x00\x02"]
    assert kinds[:2] == [b"\x08\x00\x06", b"\x08\x00\x01"]
    assert {kind[:2] for kind in kinds[2:]} == {b"\x08\x06"}, "only the request and perhaps a reply"


def test_kernel_tcp_works_beside_port(shared: tuple[Probe, Probe], hosts: Hosts) -> None:
    """The kernel's TCP on the interface works, and HARP does not receive its frames."""
    first, second = hosts("veth-1500")
    shared[1].reserve()
    kernel_moves_bytes(first, second, shared[1])


@pytest.fixture
def few_offered(hosts: Hosts) -> Iterator[set[int]]:
    """The only ports that the second host's kernel may choose: the others of its range are
    reserved."""
    host = hosts("veth-1500")[1]
    names = ("net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports")
    before = [host.run(["sysctl", "-n", name]).stdout.strip() for name in names]
    reserved = {*range(40003, 40008), *range(40012, 41000, 2), *range(41000, 42001)}
    listed = ",".join(["40003-40007", *map(str, range(40012, 41000, 2)), "41000-42000"])
    host.run(["sysctl", "-qw", f"{names[0]}=40000 42003"])
    host.run(["sysctl", "-qw", f"{names[1]}={listed}"])
    yield set(range(40000, 42004)) - reserved
    for name, text in zip(names, before):
        host.run(["sysctl", "-qw", f"{name}={text}"])


def test_ip_local_reserved_ports_are_respected(
    few_offered: set[int], shared: tuple[Probe, Probe], hosts: Hosts
) -> None:
    """HARP takes only ports that the kernel may choose itself."""
    before = listening(hosts("veth-1500")[1])
    taken = {shared[1].reserve() for _ in range(100)}
    held = listening(hosts("veth-1500")[1]) - before
    assert taken <= held <= few_offered


def test_tcp_ports_may_name_reserved_ports(
    few_offered: set[int], probe: Make, hosts: Hosts
) -> None:
    """An administrator may reserve HARP's ports to keep other programs from them."""
    host = hosts("veth-1500")[1]
    one = probe(host)
    one.open(f"packet:{host.interface}", ports="40003-40007")
    assert {one.reserve() for _ in range(5)} == set(range(40003, 40008))


def test_ports_are_held_in_blocks(shared: tuple[Probe, Probe], hosts: Hosts) -> None:
    a, b = shared
    host = hosts("veth-1500")[1]
    ports = {b.reserve() for _ in range(40)}
    assert len(ports) == 40
    held = listening(host)
    assert ports <= held and len(held) <= 80, "ports must be reserved in blocks"
    for local in ports:
        a.send(tcp_frame(a, b, dport=local))
    assert len(b.receive(40)) == 40
    for local in ports:
        b.release(local)
    assert listening(host) == held
    assert {b.reserve() for _ in range(40)} <= held


def test_several_hundred_ports_are_received(shared: tuple[Probe, Probe], hosts: Hosts) -> None:
    """Hundreds of ports form few ranges, and frames to each of them arrive."""
    a, b = shared
    ports = [b.reserve() for _ in range(300)]
    assert len(set(ports)) == 300
    for local in ports:
        a.send(tcp_frame(a, b, dport=local), flush=False)
    a.do("flush 0")
    assert [int.from_bytes(f.data[36:38], "big") for f in b.receive(300)] == ports


def test_requested_port_is_reserved(shared: tuple[Probe, Probe], hosts: Hosts) -> None:
    a, b = shared
    host = hosts("veth-1500")[1]
    assert b.reserve(0, 5201) == 5201
    a.send(tcp_frame(a, b, b"x", dport=5201))
    assert len(b.receive()) == 1
    taken = host.popen(["iperf3", "-s", "-p", "5202"], stdout=subprocess.DEVNULL)
    wait_until(lambda: 5202 in listening(host), 20, "iperf3 does not listen")
    for port in (5201, 5202):
        with pytest.raises(PortError) as refused:
            b.reserve(0, port)
        assert refused.value.number == errno.EADDRINUSE
    taken.terminate()
    taken.wait(20)


def test_configured_range_is_used(probe: Make, hosts: Hosts) -> None:
    host = hosts("veth-1500")[0]
    one, other = probe(host), probe(host)
    for each in (one, other):
        each.open(f"packet:{host.interface}", ports="7000-7039")
    ports = {each.reserve() for _ in range(4) for each in (one, other)}
    assert len(ports) == 8 and all(7000 <= port <= 7039 for port in ports)
    with pytest.raises(PortError) as outside:
        one.reserve(0, 7040)
    assert outside.value.number == errno.EADDRNOTAVAIL


def test_ports_on_shared_address_differ(
    shared: tuple[Probe, Probe], probe: Make, hosts: Hosts
) -> None:
    host = hosts("veth-1500")[0]
    sibling = probe(host)
    sibling.open(f"packet:{host.interface}")
    a = shared[0]
    here, there = a.reserve(), sibling.reserve()
    assert here != there
    a.send(tcp_frame(a, sibling, b"to the sibling", sport=here, dport=there))
    assert [f.data[HEADERS:] for f in sibling.receive()] == [b"to the sibling"]
    assert a.receives_no_frame()


def test_many_processes_share_an_address(probe: Make, hosts: Hosts) -> None:
    first, second = hosts("veth-1500")
    sender = probe(first)
    sender.open("packet:eth0", address=f"{first.own_address}/24")
    ranks = []
    for _ in range(8):
        one = probe(second)
        one.open("packet:eth0")
        ranks.append((one, one.reserve()))
    assert len({local for _, local in ranks}) == 8
    for one, local in ranks:
        sender.send(tcp_frame(sender, one, b"%d" % local, dport=local))
    for one, local in ranks:
        assert [f.data[HEADERS:] for f in one.receive_all(1)] == [b"%d" % local]
