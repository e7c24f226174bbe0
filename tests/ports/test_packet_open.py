# SPDX-License-Identifier: Apache-2.0
"""The packet port: errors of open, and an open port whose interface is removed."""

from __future__ import annotations

import errno
import time

import pytest
from packet_ports import (
    Hosts,
    Make,
    interface_leaves_and_returns,
    refusal,
    removed_interface_is_enodev,
    tcp_frame,
)
from port_probe import HEADERS, PortError, Received


def test_interface_goes_down_and_comes_back(probe: Make, hosts: Hosts) -> None:
    first, second = hosts("veth-9000")
    a, b = probe(first), probe(second)
    a.open("packet:eth0", address=f"{first.own_address}/24")
    b.open("packet:eth0", address=f"{second.own_address}/24")
    second.set_link(False)
    try:
        with pytest.raises(PortError) as down:
            b.receive()
        assert down.value.number == errno.ENETDOWN
        with pytest.raises(PortError) as send_down:
            b.send(tcp_frame(b, a, bytes(2000)))
        assert send_down.value.number == errno.ENETDOWN
        for number in range(3):  # small frames: lost at the flush, as on a wire
            b.send(tcp_frame(b, a), flush=number == 2)
    finally:
        second.set_link(True)
    deadline = time.monotonic() + 5
    got: list[Received] = []
    while not got and time.monotonic() < deadline:
        a.send(tcp_frame(a, b, b"back"))
        got = [f for f in b.receive(4, 0.1) if f.data[HEADERS:] == b"back"]
    assert got
    assert b.count()["errors"] == 4


def test_removed_interface_is_enodev(probe: Make, hosts: Hosts) -> None:
    host = hosts("veth-1500")[0]
    removed_interface_is_enodev(host, probe(host), "packet")


@pytest.mark.parametrize("queues", [1, 3])
def test_interface_that_left_and_returned_is_enodev(probe: Make, hosts: Hosts, queues: int) -> None:
    """The kernel has unbound the sockets, so they receive nothing on it again."""
    one = probe(hosts("veth-1500")[0])
    interface_leaves_and_returns(*hosts("veth-1500"), one, "packet", queues)


@pytest.mark.parametrize("queues", [1, 3])
def test_close_leaves_no_descriptors(probe: Make, hosts: Hosts, queues: int) -> None:
    host = hosts("veth-1500")[0]
    one = probe(host)
    one.do("use 0")  # the port works
    before = one.descriptors()
    for device in ("packet:eth0", "fault:drop=0.1|packet:eth0"):
        one.open(device, queues)
        one.reserve()
        one.do("close")
        assert one.descriptors() == before


def test_invalid_opens_are_refused(probe: Make, hosts: Hosts) -> None:
    host = hosts("veth-1500")[0]
    one = probe(host)
    number, text = refusal(one, "packet:eth7")
    assert number == errno.ENODEV and "lo eth0" in text and "hostNetwork" in text
    number, text = refusal(one, "packet:lo")
    assert number == errno.EOPNOTSUPP and "not an Ethernet" in text
    number, text = refusal(one, "packet:eth0", address=f"{host.address}/24")
    assert number == errno.EADDRINUSE and "address = kernel" in text
    number, text = refusal(one, "packet:eth0", mtu=9000)
    assert number == errno.EINVAL and "1500" in text
    number, text = refusal(one, "packet:eth0", mac="02:55:00:00:00:09")
    assert number == errno.EINVAL and "remove mac" in text


def test_interface_without_address_down_or_without_carrier(probe: Make, hosts: Hosts) -> None:
    host = hosts("veth-1500")[0]
    host.run(["ip", "link", "add", "bare0", "type", "veth", "peer", "name", "bare1"])
    try:
        one = probe(host)
        number, text = refusal(one, "packet:bare0")
        assert number == errno.ENETDOWN and "ip link set bare0 up" in text
        host.run(["ip", "link", "set", "bare0", "up"])
        number, text = refusal(one, "packet:bare0")
        assert number == errno.ENETDOWN and "carrier" in text
        host.run(["ip", "link", "set", "bare1", "up"])
        number, text = refusal(one, "packet:bare0")
        assert number == errno.EADDRNOTAVAIL and "no IPv4 address" in text
    finally:
        host.run(["ip", "link", "del", "bare0"])


def test_link_local_address_is_the_last_choice(probe: Make, hosts: Hosts) -> None:
    """The kernel lists it first. A label does not hide an address."""
    host = hosts("veth-1500")[0]
    local = ["169.254.3.3/16", "dev", "eth0"]
    labelled = [f"{host.address}/{host.prefix}", "dev", "eth0"]
    host.run(["ip", "address", "add", *local, "scope", "link"])
    try:
        assert probe(host).open("packet:eth0")["address"] == host.address
        host.run(["ip", "address", "del", *labelled])
        assert probe(host).open("packet:eth0")["address"] == "169.254.3.3"
        host.run(["ip", "address", "add", *labelled, "label", "eth0:1"])
        assert probe(host).open("packet:eth0")["address"] == host.address
    finally:
        host.run(["ip", "address", "flush", "dev", "eth0"])
        host.run(["ip", "address", "add", *labelled])


def test_address_of_another_interface_is_local_too(probe: Make, hosts: Hosts) -> None:
    host = hosts("veth-1500")[0]
    host.run(["ip", "route", "add", "local", "10.99.0.0/24", "dev", "lo"])
    try:
        number, _ = refusal(probe(host), "packet:eth0", address="10.99.0.9/24")
        assert number == errno.EADDRINUSE
    finally:
        host.run(["ip", "route", "del", "local", "10.99.0.0/24", "dev", "lo"])


def test_gateway_is_kernel_default_route(probe: Make, hosts: Hosts) -> None:
    host = hosts("veth-1500")[0]
    host.run(["ip", "route", "add", "default", "via", "10.77.0.200", "metric", "20"])
    host.run(["ip", "route", "add", "default", "via", "10.77.0.201", "metric", "10"])
    try:
        assert probe(host).open("packet:eth0")["gateway"] == "10.77.0.201"
    finally:
        for _ in range(2):
            host.run(["ip", "route", "del", "default"])


def test_cap_net_raw_is_sufficient(probe: Make, hosts: Hosts) -> None:
    """CAP_NET_RAW alone suffices, with a shallow buffer and a note. Without it, open fails."""
    host = hosts("veth-1500")[0]
    other = probe(hosts("veth-1500")[1])
    other.open("packet:eth0")
    raw = probe(host, "setpriv", "--bounding-set=-all,+net_raw", "--inh-caps=-all,+net_raw")
    assert "CAP_NET_ADMIN: 64 MiB" in raw.open("packet:eth0")["summary"]
    local = raw.reserve()
    before = host.counters()
    for flags in (0x02, 0x12, 0x10, 0x18, 0x11):
        other.send(tcp_frame(other, raw, b"x", dport=local, flags=flags))
    assert len(raw.receive(5)) == 5
    assert host.counters()["TcpOutSegs"] == before["TcpOutSegs"], "the kernel must not answer"
    number, text = refusal(
        probe(host, "setpriv", "--bounding-set=-all", "--inh-caps=-all"), "packet:eth0"
    )
    assert number == errno.EPERM and "CAP_NET_RAW" in text
