# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of the ports on interfaces of the lab's hosts."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable

import pytest
from port_probe import Frame, PortError, Probe

from tools.hosts.lab import Host
from tools.hosts.ranks import wait_until

Make = Callable[..., Probe]
Hosts = Callable[[str], "list[Host]"]

MSS = 1448
UNUSED_ADDRESS = "10.77.0.77"  # an unused address of the lab's network


def tcp_frame(a: Probe, b: Probe, payload: bytes = b"", **changes: object) -> Frame:
    """A segment from port a to port b."""
    fields: dict[str, object] = {
        "src": a.info["address"],
        "dst": b.info["address"],
        "sport": 50000,
        "dport": 50001,
        "src_mac": a.info["mac"],
        "dst_mac": b.info["mac"],
    }
    fields.update(changes)
    return Frame(payload=payload, **fields)  # type: ignore[arg-type]


def listening(host: Host) -> set[int]:
    """The TCP ports on which the host's kernel listens."""
    said = host.run(["ss", "-Hltn"]).stdout
    return {int(line.split()[3].rsplit(":", 1)[1]) for line in said.splitlines()}


def refusal(one: Probe, *arguments: object, **options: object) -> tuple[int, str]:
    """The errno and the line with which the port refuses to open."""
    with pytest.raises(PortError) as refused:
        one.open(*arguments, **options)  # type: ignore[arg-type]
    return refused.value.number, str(refused.value)


def descriptor_tells_of_frames(a: Probe, b: Probe) -> None:
    """The descriptor of b is readable as long as a frame from a waits."""
    b.receive(8, 0.05)
    assert not b.arm(True) and not b.wait(0.05)
    a.send(tcp_frame(a, b))
    assert b.wait(20)
    b.arm(False)
    assert len(b.receive()) == 1


def kernel_moves_bytes(first: Host, second: Host, port: Probe) -> None:
    """The kernels' TCP works, and the port on the second host does not receive its frames."""
    server = second.popen(["iperf3", "-s", "-1", "-p", "5999"], stdout=subprocess.DEVNULL)
    wait_until(lambda: 5999 in listening(second), 20, "iperf3 does not listen")
    first.run(["iperf3", "-c", second.address, "-p", "5999", "-n", "20M"])
    server.wait(20)
    frames = port.receive(10, 0.2)
    assert not [f for f in frames if f.data[12:14] == b"\x08\x00"]


def kernel_is_silent(a: Probe, b: Probe, host: Host, frames: int) -> tuple[int, dict[str, int]]:
    """The kernel of b's host answers no segment for a port that b holds. frames: what b receives
    of them. Returns the port, and how the kernel's counters moved."""
    assert b.info["shares"] and b.info["address"] == host.address
    before = host.counters()
    local = b.reserve()
    assert local in listening(host)
    for flags in (0x02, 0x12, 0x10, 0x18, 0x11):
        a.send(tcp_frame(a, b, b"x" * 10, dport=local, flags=flags))
    a.send(tcp_frame(a, b, dport=local, flags=0x02, ttl=255))
    a.send(tcp_frame(a, b, os.urandom(60000), dport=local), segment=MSS)
    assert len(b.receive(frames, 5.0)) == frames
    b.release(local)
    assert local in listening(host), "the port stays reserved for the next flow"
    moved = {name: value - before[name] for name, value in host.counters().items()}
    assert moved["TcpOutRsts"] == 0 and moved["TcpOutSegs"] == 0
    return local, moved


def removed_interface_is_enodev(host: Host, one: Probe, scheme: str) -> None:
    """A port whose interface is removed fails for good."""
    host.run(["ip", "link", "add", "gone0", "type", "veth", "peer", "name", "gone1"])
    host.run(["ip", "link", "set", "gone0", "up"])
    host.run(["ip", "link", "set", "gone1", "up"])
    one.open(f"{scheme}:gone0", address=f"{UNUSED_ADDRESS}/24")
    host.run(["ip", "link", "del", "gone0"])
    for _ in range(2):
        with pytest.raises(PortError) as gone:
            one.receive()
        assert gone.value.number == errno.ENODEV
    with pytest.raises(PortError) as gone:
        one.send(bytes(600))
    assert gone.value.number == errno.ENODEV


def interface_leaves_and_returns(
    host: Host, other: Host, one: Probe, scheme: str, queues: int
) -> None:
    """A port's interface moves to the other host and back. The port then fails for good."""

    def come_up() -> None:
        for name in ("away0", "away1"):
            host.run(["ip", "link", "set", name, "up"])

    host.run(["ip", "link", "add", "away0", "type", "veth", "peer", "name", "away1"])
    try:
        come_up()
        one.open(f"{scheme}:away0", queues, address=f"{UNUSED_ADDRESS}/24")
        index = host.read("/sys/class/net/away0/ifindex")
        host.run(["ip", "link", "set", "away0", "netns", other.namespace])
        other.run(["ip", "link", "set", "away0", "netns", host.namespace])
        come_up()
        assert host.read("/sys/class/net/away0/ifindex") == index
        for _ in range(2):
            with pytest.raises(PortError) as gone:
                one.receive()
            assert gone.value.number == errno.ENODEV
    finally:
        host.run(["ip", "link", "del", "away1"])
