# SPDX-License-Identifier: Apache-2.0
"""The packet port: AF_PACKET on the ends of a veth, without a stack above."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from port_probe import (
    CHECKSUM_START,
    HEADERS,
    Frame,
    PortError,
    Probe,
    Received,
    arp_request,
    checksum_ok,
    icmp_unreachable,
    sequence_of,
)

from tools.hosts.lab import Host

Make = Callable[..., Probe]
Hosts = Callable[[str], "list[Host]"]

MSS = 1448
SPEED_TRIES = 5  # for a busy machine
STRANGER = "10.77.0.77"  # an unused address of the lab's network


@pytest.fixture
def wire() -> str:
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


def between(a: Probe, b: Probe, payload: bytes = b"", **changes: object) -> Frame:
    """A segment from port a to port b."""
    words: dict[str, object] = {
        "src": a.info["address"],
        "dst": b.info["address"],
        "sport": 50000,
        "dport": 50001,
        "src_mac": a.info["mac"],
        "dst_mac": b.info["mac"],
    }
    words.update(changes)
    return Frame(payload=payload, **words)  # type: ignore[arg-type]


def payload_of(frames: list[Received], header: int = HEADERS) -> bytes:
    return b"".join(frame.data[header:] for frame in frames)


# Frames across the wire


def test_open_reports_interface_properties(pair: tuple[Probe, Probe], hosts: Hosts) -> None:
    info = pair[0].info
    host = hosts("veth-1500")[0]
    assert info["mac"] == host.mac and info["mtu"] == 1500
    assert info["max_frame"] == 65535 and info["offloads"] == 15
    assert info["address"] == host.own_address and info["prefix"] == 24
    assert info["speed"] == 10000 and info["pci"] == "" and not info["shares"]
    assert "its own" in info["summary"] and "receive buffer" not in info["summary"]


@pytest.mark.parametrize("pieces", [1, 2, 250])
def test_large_segment_crosses_whole(pair: tuple[Probe, Probe], pieces: int) -> None:
    for a, b in (pair, pair[::-1]):
        payload = os.urandom(65000)
        a.send(between(a, b, payload), segment=MSS, pieces=pieces)
        (got,) = b.receive()
        assert got.segment == MSS and got.good
        assert payload_of([got]) == payload
        assert a.count()["copied"] == 65000


@pytest.mark.parametrize("wire", ["veth-1500-nooff"])
def test_kernel_segments_without_offloads(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    payload = os.urandom(45 * MSS - 7)
    a.send(between(a, b, payload), segment=MSS)
    frames = b.receive(46, 0.5)
    assert len(frames) == 45
    assert all(checksum_ok(frame.data) for frame in frames)
    assert payload_of(frames) == payload


@pytest.mark.parametrize("wire", ["veth-9000"])
def test_jumbo_frame_crosses_whole(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    assert a.info["mtu"] == 9000
    one = between(a, b, os.urandom(8948))
    a.send(one)
    (got,) = b.receive()
    assert got.data[HEADERS:] == one.payload and got.segment == 0


def test_checksum_status_is_reported(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    a.send(between(a, b, b"device sums"))
    a.send(between(a, b, b"complete", complete=True))
    first, second = b.receive(2)
    assert first.good
    assert not second.good and checksum_ok(second.data)


def test_small_frames_wait_for_the_flush_and_keep_order(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    for number in range(3):
        a.send(between(a, b, seq=number), flush=False)
    assert b.nothing()
    a.send(between(a, b, bytes(3000), seq=3), segment=MSS, flush=False)
    a.send(between(a, b, seq=4), flush=False)
    assert [sequence_of(f.data) for f in b.receive(4)] == [0, 1, 2, 3]
    a.do("flush 0")
    assert [sequence_of(f.data) for f in b.receive(1)] == [4]


def test_many_small_frames_leave_in_one_burst(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    for number in range(100):
        a.send(between(a, b, seq=number), flush=number == 99)
    assert [sequence_of(f.data) for f in b.receive(100)] == list(range(100))


def test_too_long_frame_is_emsgsize(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    for one, segment in ((between(a, b, bytes(65470)), MSS), (between(a, b, bytes(1500)), 0)):
        with pytest.raises(PortError) as refused:
            a.send(one, segment=segment)
        assert refused.value.number == errno.EMSGSIZE
    with pytest.raises(PortError) as pieces:
        a.send(between(a, b, bytes(30000)), segment=MSS, pieces=299)
    assert pieces.value.number == errno.EMSGSIZE


# Hints


STRIDE = 20000
HINT = (HEADERS, 4 * STRIDE, STRIDE)


def test_correct_hint_delivers_payload_to_buffer(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    sent = [between(a, b, os.urandom(size)) for size in (STRIDE, STRIDE, 5, STRIDE)]
    for one in sent:
        a.send(one, segment=MSS)
    time.sleep(0.05)  # until both frames are there: a burst adapts to recent arrivals
    got = b.receive(2, hint=HINT) + b.receive(2, hint=HINT)
    assert [f.place for f in got] == [0, STRIDE, 0, STRIDE]
    assert [f.header_length for f in got] == [HEADERS] * 4
    assert [f.data[HEADERS:] for f in got] == [one.payload for one in sent]


def check_contiguous(got: Received, one: Frame) -> None:
    assert got.place == -1 and got.payload_length == 0
    assert got.data[one.header_length :] == one.payload
    assert got.data[:12] == bytes(one)[:12]


@pytest.mark.parametrize("size", [1, MSS, STRIDE + 1, 60000])
@pytest.mark.parametrize("options", [b"", b"\x01" * 40])
def test_unexpected_header_makes_frame_contiguous(
    pair: tuple[Probe, Probe], size: int, options: bytes
) -> None:
    a, b = pair
    one = between(a, b, os.urandom(size), options=options)
    a.send(one, segment=1400)
    (got,) = b.receive(1, hint=HINT)
    check_contiguous(got, one)


@pytest.mark.parametrize("size", [STRIDE + 1, 2 * STRIDE, 65000])
def test_unexpected_length_makes_frame_contiguous(pair: tuple[Probe, Probe], size: int) -> None:
    a, b = pair
    one = between(a, b, os.urandom(size))
    a.send(one, segment=MSS)
    (got,) = b.receive(1, hint=HINT)
    check_contiguous(got, one)


@pytest.mark.parametrize(
    ("size", "options"),
    [(STRIDE + 1, b"\x01\x01\x08\x0a" + bytes(8)), (STRIDE + 12, b""), (STRIDE + 1, b"\x01" * 40)],
)
def test_long_payload_moves_next_payload_out_of_buffer(
    pair: tuple[Probe, Probe], size: int, options: bytes
) -> None:
    """A payload longer than its stride needs the next one's place, so the next one moves out of the
    buffer."""
    a, b = pair
    first = between(a, b, os.urandom(size), options=options)
    second = between(a, b, os.urandom(STRIDE))
    for one in (first, second):
        a.send(one, segment=1400)
    time.sleep(0.05)
    got = b.receive(2, hint=HINT)
    for frame, one in zip(got, (first, second)):
        check_contiguous(frame, one)


def test_other_frames_leave_next_payload_in_buffer(pair: tuple[Probe, Probe]) -> None:
    """A frame that fits its stride leaves the next payload in the buffer."""
    a, b = pair
    request = arp_request(a.info["mac"], a.info["address"], b.info["address"])
    for first in (between(a, b), between(a, b, bytes(STRIDE), options=b""), request):
        second = between(a, b, os.urandom(STRIDE))
        a.send(first, segment=1400)
        a.send(second, segment=MSS)
        time.sleep(0.05)
        got = b.receive(2, hint=HINT)
        assert [frame.place for frame in got] == [-1, STRIDE]


def test_hint_bounds_bytes_written_to_buffer(pair: tuple[Probe, Probe]) -> None:
    """The buffer ends within the second frame's stride: the rest of its payload stays in the
    slot."""
    a, b = pair
    sent = [between(a, b, os.urandom(size)) for size in (STRIDE, 100, STRIDE, STRIDE)]
    for one in sent:
        a.send(one, segment=MSS)
    time.sleep(0.05)
    hint = (HEADERS, STRIDE + 100, STRIDE)
    got = b.receive(2, hint=hint)
    assert [f.place for f in got] == [0, STRIDE]
    got += b.receive(2, hint=hint)
    assert [f.place for f in got[2:]] == [0, -1]
    assert [f.data[HEADERS:] for f in got] == [one.payload for one in sent]


def test_hint_with_pure_ack(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    for options in (b"", b"\x01\x01\x08\x0a" + bytes(8), b"\x01" * 40):
        one = between(a, b, options=options)
        a.send(one)
        (got,) = b.receive(1, hint=HINT)
        assert got.payload_length == 0 and got.data[:16] == bytes(one)[:16]
        assert len(got.data) == len(bytes(one))


def test_hint_with_arp(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    request = arp_request(a.info["mac"], a.info["address"], b.info["address"])
    a.send(request)
    (got,) = b.receive(1, hint=(HEADERS, 1000, 1000))
    assert got.data == request and got.payload_length == 0


# Received and filtered frames


def test_own_frames_are_not_received(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    a.send(between(a, a, b"to myself"))
    a.send(arp_request(a.info["mac"], a.info["address"], b.info["address"]))
    assert a.nothing()


def test_filter_of_an_own_address(pair: tuple[Probe, Probe], hosts: Hosts) -> None:
    a, b = pair
    kernel = hosts("veth-1500")[1].address
    a.send(between(a, b, b"the kernel's", dst=kernel))
    for other in ("02:99:00:00:00:02", "02:77:00:00:00:01"):
        a.send(between(a, b, b"other mac", dst_mac=other))
    a.send(bytes(between(a, b))[:12] + b"\x86\xdd" + bytes(100))  # IPv6
    a.send(bytes(between(a, b))[:12] + b"\x81\x00\x00\x05" + bytes(between(a, b))[12:])
    a.send(between(a, b, b"ours", complete=True))
    # A tag of VLAN 0 has only a priority; the kernel removes it.
    urgent = bytes(between(a, b, b"urgent", complete=True))
    a.send(urgent[:12] + b"\x81\x00\xe0\x00" + urgent[12:])
    assert [f.data[HEADERS:] for f in b.receive(7, 0.3)] == [b"ours", b"urgent"]


def test_tcp_ports_divide_own_address(probe: Make, hosts: Hosts, pair: tuple[Probe, Probe]) -> None:
    """tcp_ports divides one address among files: each receives only its own range."""
    a, _ = pair
    host = hosts("veth-1500")[1]
    low, high = probe(host), probe(host)
    address = f"{STRANGER}/24"
    low.open(f"packet:{host.interface}", address=address, ports="6000-6099")
    high.open(f"packet:{host.interface}", address=address, ports="6100-6199")
    assert 6000 <= low.reserve() <= 6099 and 6100 <= high.reserve() <= 6199
    a.send(between(a, low, b"low", dport=6099))
    a.send(between(a, low, b"high", dport=6100))
    a.send(between(a, low, b"none", dport=6200))
    assert [f.data[HEADERS:] for f in low.receive(3, 0.3)] == [b"low"]
    assert [f.data[HEADERS:] for f in high.receive(3, 0.1)] == [b"high"]


def test_second_mac_address_is_registered(
    probe: Make, hosts: Hosts, pair: tuple[Probe, Probe]
) -> None:
    a, _ = pair
    host = hosts("veth-1500")[1]
    other = probe(host)
    other.open(f"packet:{host.interface}", address=f"{STRANGER}/24", mac="02:55:00:00:00:09")
    assert other.info["mac"] == "02:55:00:00:00:09"
    a.send(between(a, other, b"hello"))
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
    sibling.open(f"packet:{host.interface}", address=f"{STRANGER}/24")
    payload = os.urandom(60000)
    a.send(arp_request(a.info["mac"], a.info["address"], STRANGER))
    assert len(sibling.receive()) == 1
    a.send(between(a, sibling, payload), segment=MSS)
    (got,) = sibling.receive()
    assert got.segment == MSS and got.good and got.data[HEADERS:] == payload


# Sharing the kernel's address


def listening(host: Host) -> set[int]:
    """The TCP ports on which the host's kernel listens."""
    said = host.run(["ss", "-Hltn"]).stdout
    return {int(line.split()[3].rsplit(":", 1)[1]) for line in said.splitlines()}


@pytest.fixture
def shared(probe: Make, hosts: Hosts) -> tuple[Probe, Probe]:
    ends = []
    for host in hosts("veth-1500"):
        one = probe(host)
        one.open(f"packet:{host.interface}")
        ends.append(one)
    return ends[0], ends[1]


def test_kernel_does_not_answer_reserved_ports(shared: tuple[Probe, Probe], hosts: Hosts) -> None:
    a, b = shared
    host = hosts("veth-1500")[1]
    assert b.info["shares"] and b.info["address"] == host.address
    before = host.counters()
    local = b.reserve()
    assert local in listening(host)
    for flags in (0x02, 0x12, 0x10, 0x18, 0x11):
        a.send(between(a, b, b"x" * 10, dport=local, flags=flags))
    a.send(between(a, b, dport=local, flags=0x02, ttl=255))
    a.send(between(a, b, os.urandom(60000), dport=local), segment=MSS)
    assert len(b.receive(7)) == 7
    b.release(local)
    assert local in listening(host), "the port stays reserved for the next flow"
    moved = {name: value - before[name] for name, value in host.counters().items()}
    assert moved["TcpOutRsts"] == 0 and moved["TcpOutSegs"] == 0
    b.do("close")
    assert local not in listening(host)


def test_kernel_resets_unreserved_port(shared: tuple[Probe, Probe], hosts: Hosts) -> None:
    """An unreserved port draws a reset. This validates the test above."""
    a, b = shared
    host = hosts("veth-1500")[1]
    before = host.counters()["TcpOutRsts"]
    a.send(between(a, b, dport=45))
    time.sleep(0.05)
    assert host.counters()["TcpOutRsts"] == before + 1


def test_filter_of_a_shared_address(shared: tuple[Probe, Probe]) -> None:
    a, b = shared
    local = b.reserve()
    quoted = between(b, a, sport=local)
    addresses = (a.info["address"], b.info["address"], a.info["mac"], b.info["mac"])
    a.send(between(a, b, b"not ours", dport=(local + 1000) % 30000 + 1024))
    a.send(between(a, b, b"fragment", dport=local, fragment=100))
    a.send(between(a, b, b"ours", dport=local, complete=True))
    a.send(icmp_unreachable(*addresses, quoted))
    echo = bytearray(icmp_unreachable(*addresses, quoted))
    echo[34] = 8
    a.send(bytes(echo))
    a.send(arp_request(a.info["mac"], a.info["address"], b.info["address"]))
    frames = b.receive(7, 0.3)
    kinds = [f.data[12:14] + f.data[23:24] for f in frames if f.data[20:22] != b"\x00\x02"]
    assert kinds[:2] == [b"\x08\x00\x06", b"\x08\x00\x01"]
    assert {kind[:2] for kind in kinds[2:]} == {b"\x08\x06"}, "only the request and perhaps a reply"


def test_kernel_tcp_works_beside_port(shared: tuple[Probe, Probe], hosts: Hosts) -> None:
    """The kernel's TCP on the interface works, and HARP does not receive its frames."""
    first, second = hosts("veth-1500")
    shared[1].reserve()
    server = second.popen(["iperf3", "-s", "-1", "-p", "5999"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 5
    while 5999 not in listening(second) and time.monotonic() < deadline:
        time.sleep(0.02)
    first.run(["iperf3", "-c", second.address, "-p", "5999", "-n", "20M"])
    server.wait(5)
    frames = shared[1].receive(10, 0.2)
    assert not [f for f in frames if f.data[12:14] == b"\x08\x00"]


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
        a.send(between(a, b, dport=local))
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
        a.send(between(a, b, dport=local), flush=False)
    a.do("flush 0")
    assert [int.from_bytes(f.data[36:38], "big") for f in b.receive(300)] == ports


def test_requested_port_is_reserved(shared: tuple[Probe, Probe], hosts: Hosts) -> None:
    a, b = shared
    host = hosts("veth-1500")[1]
    assert b.reserve(0, 5201) == 5201
    a.send(between(a, b, b"x", dport=5201))
    assert len(b.receive()) == 1
    taken = host.popen(["iperf3", "-s", "-p", "5202"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 5
    while 5202 not in listening(host) and time.monotonic() < deadline:
        time.sleep(0.02)
    for port in (5201, 5202):
        with pytest.raises(PortError) as refused:
            b.reserve(0, port)
        assert refused.value.number == errno.EADDRINUSE
    taken.terminate()
    taken.wait(5)


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
    a.send(between(a, sibling, b"to the sibling", sport=here, dport=there))
    assert [f.data[HEADERS:] for f in sibling.receive()] == [b"to the sibling"]
    assert a.nothing()


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
            sender.send(between(sender, b, os.urandom(40000), dport=local), segment=MSS)
    for queue in ports:
        frames = b.receive(6, 0.3, queue=queue)
        assert [int.from_bytes(f.data[36:38], "big") for f in frames] == ports[queue]
    addresses = (sender.info["address"], b.info["address"], sender.info["mac"], b.info["mac"])
    quoted = between(b, sender, sport=ports[2][0])
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
        sender.send(between(sender, one, dport=local))
        assert len(one.receive(1, queue=1)) == 1


# Sleeping, counting, failing


def test_descriptor_is_readable_when_frames_wait(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    b.receive(8, 0.05)
    assert not b.arm(True) and not b.wait(0.05)
    a.send(between(a, b))
    assert b.wait(1)
    b.arm(False)
    assert len(b.receive()) == 1


def test_socket_buffer_losses_are_counted(probe: Make, hosts: Hosts) -> None:
    """A sleeping reader loses the frames beyond its socket buffer, and counts them."""
    first, second = hosts("veth-1500")
    a, b = probe(first), probe(second)
    a.open("packet:eth0", address=f"{first.own_address}/24")
    b.open("packet:eth0", address=f"{second.own_address}/24")
    big = between(a, b, bytes(64000))
    sent = json.loads(a.do(f"blast 0 300 {HEADERS} {MSS} {CHECKSUM_START} 16 {bytes(big).hex()}"))
    waiting = 0
    while got := len(b.receive(200, 0)):
        waiting += got
    assert waiting * 64000 > 20e6, "the socket buffer is too small"
    lost = b.count()["lost"]
    assert waiting + lost == sent["frames"]
    assert b.count()["lost"] == 0, "losses must be counted once"


def test_full_qdisc_is_eagain(probe: Make, hosts: Hosts) -> None:
    """The queueing discipline is full: send returns EAGAIN, without a loss or a sleep."""
    first, second = hosts("veth-1500")
    a, b = probe(first), probe(second)
    a.open("packet:eth0", address=f"{first.own_address}/24")
    b.open("packet:eth0", address=f"{second.own_address}/24")
    limit = ["rate", "100kbit", "burst", "3000", "limit", "6000"]
    first.run(["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *limit])
    sent = 0
    try:
        with pytest.raises(PortError) as full:
            while sent < 500:
                a.send(between(a, b, seq=sent), flush=False)
                sent += 1
        assert full.value.number == errno.EAGAIN
        with pytest.raises(PortError) as full:
            a.send(between(a, b, bytes(1000)))
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
            b.send(between(b, a, bytes(2000)))
        assert send_down.value.number == errno.ENETDOWN
        for number in range(3):  # small frames: lost at the flush, as on a wire
            b.send(between(b, a), flush=number == 2)
    finally:
        second.set_link(True)
    deadline = time.monotonic() + 5
    got: list[Received] = []
    while not got and time.monotonic() < deadline:
        a.send(between(a, b, b"back"))
        got = [f for f in b.receive(4, 0.1) if f.data[HEADERS:] == b"back"]
    assert got
    assert b.count()["errors"] == 4


def test_removed_interface_is_enodev(probe: Make, hosts: Hosts) -> None:
    host = hosts("veth-1500")[0]
    host.run(["ip", "link", "add", "gone0", "type", "veth", "peer", "name", "gone1"])
    host.run(["ip", "link", "set", "gone0", "up"])
    host.run(["ip", "link", "set", "gone1", "up"])
    one = probe(host)
    one.open("packet:gone0", address=f"{STRANGER}/24")
    host.run(["ip", "link", "del", "gone0"])
    with pytest.raises(PortError) as gone:
        one.receive()
    assert gone.value.number == errno.ENODEV
    with pytest.raises(PortError) as gone:
        one.send(bytes(600))
    assert gone.value.number == errno.ENODEV


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


def refusal(one: Probe, *arguments: object, **options: object) -> tuple[int, str]:
    with pytest.raises(PortError) as refused:
        one.open(*arguments, **options)  # type: ignore[arg-type]
    return refused.value.number, str(refused.value)


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
    assert number == errno.EINVAL and "leave it out" in text


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
        other.send(between(other, raw, b"x", dport=local, flags=flags))
    assert len(raw.receive(5)) == 5
    assert host.counters()["TcpOutSegs"] == before["TcpOutSegs"], "the kernel must not answer"
    number, text = refusal(
        probe(host, "setpriv", "--bounding-set=-all", "--inh-caps=-all"), "packet:eth0"
    )
    assert number == errno.EPERM and "CAP_NET_RAW" in text


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
        sender.send(between(sender, one, b"%d" % local, dport=local))
    for one, local in ranks:
        assert [f.data[HEADERS:] for f in one.receive(2, 0.1)] == [b"%d" % local]


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
    big = between(a, b, bytes(45 * MSS))
    for _ in range(SPEED_TRIES):
        gbit, per_cpu, frames = speed(a, b, big, hint)
        record_property("gbit", round(gbit, 1))
        print(f"{wire} hint {hint}: {gbit:.1f} Gbit/s, {per_cpu:.1f} per CPU-second of the sender")
        if frames > 0 and per_cpu > least:
            return
    pytest.fail(f"{per_cpu:.1f} Gbit per CPU-second in the last of {SPEED_TRIES} tries")
