# SPDX-License-Identifier: Apache-2.0
"""The packet port: AF_PACKET on the ends of a veth, without a stack above."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable

import pytest
from packet_ports import (
    MSS,
    UNUSED_ADDRESS,
    Hosts,
    Make,
    descriptor_tells_of_frames,
    tcp_frame,
)
from port_probe import (
    CHECKSUM_START,
    HEADERS,
    Frame,
    PortError,
    Probe,
    arp_request,
    checksum_ok,
    icmp_unreachable,
    payload_of,
    sequence_of,
)

SPEED_TRIES = 5  # on a busy machine


# Frames across the wire


def test_open_reports_interface_properties(pair: tuple[Probe, Probe], hosts: Hosts) -> None:
    info = pair[0].info
    host = hosts("veth-1500")[0]
    assert info["mac"] == host.mac and info["mtu"] == 1500
    assert info["max_frame"] == 65024 and info["offloads"] == 15
    assert info["address"] == host.own_address and info["prefix"] == 24
    assert info["speed"] == 10000 and info["pci"] == "" and not info["shares"]
    assert "its own" in info["summary"] and "receive buffer" not in info["summary"]


@pytest.mark.parametrize("pieces", [1, 2, 250])
def test_large_segment_crosses_whole(pair: tuple[Probe, Probe], pieces: int) -> None:
    for a, b in (pair, pair[::-1]):
        payload = os.urandom(64900)
        a.send(tcp_frame(a, b, payload), segment=MSS, pieces=pieces)
        (got,) = b.receive()
        assert got.segment == MSS and got.good
        assert payload_of([got]) == payload
        assert a.count()["copied"] == 64900


@pytest.mark.parametrize("wire", ["veth-1500-nooff"])
def test_kernel_segments_without_offloads(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    payload = os.urandom(44 * MSS - 7)
    a.send(tcp_frame(a, b, payload), segment=MSS)
    frames = b.receive_all(44)
    assert len(frames) == 44
    assert all(checksum_ok(frame.data) for frame in frames)
    assert payload_of(frames) == payload


@pytest.mark.parametrize("wire", ["veth-9000"])
def test_jumbo_frame_crosses_whole(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    assert a.info["mtu"] == 9000
    one = tcp_frame(a, b, os.urandom(8948))
    a.send(one)
    (got,) = b.receive()
    assert got.data[HEADERS:] == one.payload and got.segment == 0


def test_checksum_status_is_reported(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    a.send(tcp_frame(a, b, b"device sums"))
    a.send(tcp_frame(a, b, b"complete", complete=True))
    first, second = b.receive(2)
    assert first.good
    assert not second.good and checksum_ok(second.data)


def test_small_frames_wait_for_the_flush_and_keep_order(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    for number in range(3):
        a.send(tcp_frame(a, b, seq=number), flush=False)
    assert b.receives_no_frame()
    a.send(tcp_frame(a, b, bytes(3000), seq=3), segment=MSS, flush=False)
    a.send(tcp_frame(a, b, seq=4), flush=False)
    assert [sequence_of(f.data) for f in b.receive(4)] == [0, 1, 2, 3]
    a.do("flush 0")
    assert [sequence_of(f.data) for f in b.receive(1)] == [4]


def test_many_small_frames_leave_in_one_burst(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    for number in range(100):
        a.send(tcp_frame(a, b, seq=number), flush=number == 99)
    assert [sequence_of(f.data) for f in b.receive(100)] == list(range(100))


def test_too_long_frame_is_emsgsize(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    for one, segment in ((tcp_frame(a, b, bytes(65470)), MSS), (tcp_frame(a, b, bytes(1500)), 0)):
        with pytest.raises(PortError) as refused:
            a.send(one, segment=segment)
        assert refused.value.number == errno.EMSGSIZE
    with pytest.raises(PortError) as pieces:
        a.send(tcp_frame(a, b, bytes(30000)), segment=MSS, pieces=299)
    assert pieces.value.number == errno.EMSGSIZE


# Received and filtered frames


def test_own_frames_are_not_received(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    a.send(tcp_frame(a, a, b"to myself"))
    a.send(arp_request(a.info["mac"], a.info["address"], b.info["address"]))
    assert a.receives_no_frame()


def test_filter_of_an_own_address(pair: tuple[Probe, Probe], hosts: Hosts) -> None:
    a, b = pair
    kernel = hosts("veth-1500")[1].address
    a.send(tcp_frame(a, b, b"the kernel's", dst=kernel))
    for other in ("02:99:00:00:00:02", "02:77:00:00:00:01"):
        a.send(tcp_frame(a, b, b"other mac", dst_mac=other))
    a.send(bytes(tcp_frame(a, b))[:12] + b"\x86\xdd" + bytes(100))  # IPv6
    a.send(bytes(tcp_frame(a, b))[:12] + b"\x81\x00\x00\x05" + bytes(tcp_frame(a, b))[12:])
    a.send(tcp_frame(a, b, b"ours", complete=True))
    # A tag of VLAN 0 has only a priority; the kernel removes it.
    urgent = bytes(tcp_frame(a, b, b"urgent", complete=True))
    a.send(urgent[:12] + b"\x81\x00\xe0\x00" + urgent[12:])
    assert [f.data[HEADERS:] for f in b.receive_all(2)] == [b"ours", b"urgent"]


def test_tcp_ports_divide_own_address(probe: Make, hosts: Hosts, pair: tuple[Probe, Probe]) -> None:
    """tcp_ports divides one address among files: each receives only its own range."""
    a, _ = pair
    host = hosts("veth-1500")[1]
    low, high = probe(host), probe(host)
    address = f"{UNUSED_ADDRESS}/24"
    low.open(f"packet:{host.interface}", address=address, ports="6000-6099")
    high.open(f"packet:{host.interface}", address=address, ports="6100-6199")
    assert 6000 <= low.reserve() <= 6099 and 6100 <= high.reserve() <= 6199
    a.send(tcp_frame(a, low, b"low", dport=6099))
    a.send(tcp_frame(a, low, b"high", dport=6100))
    a.send(tcp_frame(a, low, b"none", dport=6200))
    assert [f.data[HEADERS:] for f in low.receive_all(1)] == [b"low"]
    assert [f.data[HEADERS:] for f in high.receive_all(1)] == [b"high"]


def test_second_mac_address_is_registered(
    probe: Make, hosts: Hosts, pair: tuple[Probe, Probe]
) -> None:
    a, _ = pair
    host = hosts("veth-1500")[1]
    other = probe(host)
    other.open(f"packet:{host.interface}", address=f"{UNUSED_ADDRESS}/24", mac="02:55:00:00:00:09")
    assert other.info["mac"] == "02:55:00:00:00:09"
    a.send(tcp_frame(a, other, b"hello"))
    assert len(other.receive()) == 1
    known = host.run(["bridge", "fdb", "show", "dev", "eth0"]).stdout
    assert "02:55:00:00:00:09" in known, "the NIC's address filter must have it"


def test_ports_on_one_interface_receive_from_each_other(
    probe: Make, hosts: Hosts, pair: tuple[Probe, Probe]
) -> None:
    """Two processes share an interface: an outgoing frame of one arrives at the other."""
    a, _ = pair
    host = hosts("veth-1500")[0]
    sibling = probe(host)
    sibling.open(f"packet:{host.interface}", address=f"{UNUSED_ADDRESS}/24")
    payload = os.urandom(60000)
    a.send(arp_request(a.info["mac"], a.info["address"], UNUSED_ADDRESS))
    assert len(sibling.receive()) == 1
    a.send(tcp_frame(a, sibling, payload), segment=MSS)
    (got,) = sibling.receive()
    assert got.segment == MSS and got.good and got.data[HEADERS:] == payload


# Several queues


@pytest.mark.parametrize("own", [True, False])
def test_fanout_steers_by_local_port(probe: Make, hosts: Hosts, own: bool) -> None:
    hosts_ = hosts("veth-1500")
    address = f"{hosts_[1].own_address}/24" if own else "-"
    sender, b = probe(hosts_[0]), probe(hosts_[1])
    sender.open("packet:eth0", address=f"{hosts_[0].own_address}/24")
    b.open("packet:eth0", 3, address)
    ports = {queue: [b.reserve(queue) for _ in range(5)] for queue in range(3)}
    for queue, mine in ports.items():
        assert all(local % 3 == queue for local in mine)
        for local in mine:
            sender.send(tcp_frame(sender, b, os.urandom(40000), dport=local), segment=MSS)
    for queue in ports:
        frames = b.receive(6, 0.3, queue=queue)
        assert [int.from_bytes(f.data[36:38], "big") for f in frames] == ports[queue]
    addresses = (sender.info["address"], b.info["address"], sender.info["mac"], b.info["mac"])
    quoted = tcp_frame(b, sender, sport=ports[2][0])
    sender.send(icmp_unreachable(*addresses, quoted))
    assert len(b.receive(1, queue=2)) == 1, "an ICMP error must reach the queue of the quoted flow"


def test_arp_reaches_every_queue(probe: Make, hosts: Hosts) -> None:
    first, second = hosts("veth-1500")
    sender, b = probe(first), probe(second)
    sender.open("packet:eth0", address=f"{first.own_address}/24")
    b.open("packet:eth0", 2, f"{second.own_address}/24")
    for queue in range(2):
        b.receive(8, 0.05, queue=queue)  # discards the kernels' own frames
        assert not b.arm(True, queue)
    request = arp_request(sender.info["mac"], sender.info["address"], b.info["address"])
    sender.send(request)
    for queue in range(2):
        assert b.wait(1, queue), "ARP wakes a sleeper"
        b.arm(False, queue)
        assert request in [f.data[: len(request)] for f in b.receive(1, 0, queue=queue)], "at once"


def test_fanout_groups_are_per_process(probe: Make, hosts: Hosts) -> None:
    """Each process has its own fanout group, so frames are not divided between processes."""
    first, second = hosts("veth-1500")
    sender = probe(first)
    sender.open("packet:eth0", address=f"{first.own_address}/24")
    ports = []
    for _ in range(2):
        one = probe(second)
        one.open("packet:eth0", 2)
        ports.append((one, one.reserve(1)))
    for one, local in ports:
        sender.send(tcp_frame(sender, one, dport=local))
        assert len(one.receive(1, queue=1)) == 1


# Sleeping, counting, failing


def test_descriptor_is_readable_when_frames_wait(pair: tuple[Probe, Probe]) -> None:
    descriptor_tells_of_frames(*pair)


def test_socket_buffer_losses_are_counted(probe: Make, hosts: Hosts) -> None:
    """A sleeping reader loses the frames beyond its socket buffer, and counts them."""
    first, second = hosts("veth-1500")
    a, b = probe(first), probe(second)
    a.open("packet:eth0", address=f"{first.own_address}/24")
    b.open("packet:eth0", address=f"{second.own_address}/24")
    big = tcp_frame(a, b, bytes(64000))
    blast = f"blast 0 300 {HEADERS} {MSS} {CHECKSUM_START} 16 {bytes(big).hex()}"
    sent = waiting = 0
    while sent * len(bytes(big)) < 100e6:  # a busy machine needs several
        sent += json.loads(a.do(blast))["frames"]
    while got := len(b.receive(200, 0)):
        waiting += got
    assert waiting * 64000 > 20e6, "the socket buffer is too small"
    lost = b.count()["lost"]
    assert waiting + lost == sent
    assert b.count()["lost"] == 0, "losses must be counted once"


def test_full_qdisc_is_eagain(probe: Make, hosts: Hosts) -> None:
    """The queueing discipline is full: send returns EAGAIN, without a loss or a sleep."""
    first, second = hosts("veth-1500")
    a, b = probe(first), probe(second)
    a.open("packet:eth0", address=f"{first.own_address}/24")
    b.open("packet:eth0", address=f"{second.own_address}/24")
    limit = ["rate", "8kbit", "burst", "3000", "limit", "6000"]
    first.run(["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *limit])
    sent = 0
    try:
        with pytest.raises(PortError) as full:
            while sent < 500:
                a.send(tcp_frame(a, b, seq=sent), flush=False)
                sent += 1
        assert full.value.number == errno.EAGAIN
        with pytest.raises(PortError) as full:
            a.send(tcp_frame(a, b, bytes(1000)))
        assert full.value.number == errno.EAGAIN
        assert a.arm(True), "arm must report the frames held back"
    finally:
        first.run(["tc", "qdisc", "del", "dev", "eth0", "root"])
    a.do("flush 0")
    assert not a.arm(True)
    got = [sequence_of(f.data) for f in b.receive(sent, 0.5)]
    after = got[got.index(max(n for n in got if n + 1 not in got and n + 1 < sent)) + 1 :]
    assert after == list(range(sent - len(after), sent)), "a frame held back was lost"
    assert a.count()["full"] >= 3


def speed(a: Probe, b: Probe, big: Frame, hint: int) -> tuple[float, float, int]:
    """The received Gbit/s, the sent Gbit for each CPU second of the sender, and the frames."""
    b.start(f"drain 0 700 {hint} {len(big.payload)}")
    time.sleep(0.05)
    command = f"blast 0 900 {HEADERS} {MSS} {CHECKSUM_START} 16 {bytes(big).hex()}"
    sent = json.loads(a.do(command))
    arrived = json.loads(b.finish()[1])
    gbit = arrived["bytes"] * 8 / arrived["ms"] / 1e6
    per_cpu = sent["frames"] * len(bytes(big)) * 8 / sent["cpu_ms"] / 1e6
    return gbit, per_cpu, arrived["frames"]


@pytest.mark.alone
@pytest.mark.parametrize(("wire", "least"), [("veth-1500", 5), ("veth-1500-nooff", 0.5)])
@pytest.mark.parametrize("hint", [0, HEADERS])
def test_throughput_over_veth(
    pair: tuple[Probe, Probe],
    wire: str,
    least: float,
    hint: int,
    record_property: Callable[[str, object], None],
) -> None:
    """Large segments at full speed. The bound is on the bits for each CPU second of the sender. It
    is low, so that it detects a broken path also on a busy machine."""
    a, b = pair
    big = tcp_frame(a, b, bytes(44 * MSS))
    for _ in range(SPEED_TRIES):
        gbit, per_cpu, frames = speed(a, b, big, hint)
        record_property("gbit", round(gbit, 1))
        print(f"{wire} hint {hint}: {gbit:.1f} Gbit/s, {per_cpu:.1f} per CPU-second of the sender")
        if frames > 0 and per_cpu > least:
            return
    pytest.fail(f"{per_cpu:.1f} Gbit per CPU-second in the last of {SPEED_TRIES} tries")
