# SPDX-License-Identifier: Apache-2.0
"""The xdp port: AF_XDP on the ends of a veth, without a stack above."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from packet_ports import (
    MSS,
    UNUSED_ADDRESS,
    Hosts,
    Make,
    descriptor_tells_of_frames,
    interface_leaves_and_returns,
    kernel_is_silent,
    kernel_moves_bytes,
    listening,
    refusal,
    removed_interface_is_enodev,
    tcp_frame,
)
from port_probe import (
    CHECKSUM_START,
    HEADERS,
    PROBE,
    PortError,
    Probe,
    arp_request,
    checksum_ok,
    icmp_unreachable,
    payload_of,
    sequence_of,
)
from xdp_ports import BOTH_SENDERS, needs_xdp, opened, until_received

from tools.hosts.lab import Host
from tools.hosts.ranks import wait_until

pytestmark = needs_xdp


# Has a queue for a while without an XDP program, as the kernel after the end of a process.
HAS_QUEUE = """
import ctypes, mmap, socket, struct, time
SOL_XDP, RX_RING, UMEM_REG, FILL_RING, COMPLETION_RING, COPY = 283, 2, 4, 5, 6, 2
xsk = socket.socket(44, socket.SOCK_RAW)
memory = mmap.mmap(-1, 1 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
xsk.setsockopt(SOL_XDP, UMEM_REG, struct.pack("=QQIIII", address, 1 << 20, 4096, 0, 0, 0))
for ring in (FILL_RING, COMPLETION_RING, RX_RING):
    xsk.setsockopt(SOL_XDP, ring, struct.pack("=I", 64))
where = struct.pack("=HHIII", 44, COPY, socket.if_nametoindex("eth0"), 0, 0)
for _ in range(200):  # an earlier test may have had the queue
    if ctypes.CDLL(None).bind(xsk.fileno(), where, len(where)) == 0:
        break
    time.sleep(0.05)
print("bound", flush=True)
time.sleep(2)
"""


@pytest.fixture
def xdp_shared(probe: Make, hosts: Hosts) -> tuple[Probe, Probe]:
    """Two ports on the kernels' own addresses."""
    first, second = hosts("veth-1500")
    return opened(probe, first, own=False), opened(probe, second, own=False)


@pytest.fixture
def merged(probe: Make, hosts: Hosts) -> Iterator[tuple[Probe, Probe]]:
    """A packet port and an xdp port whose frames the kernel neither cuts nor sums: the driver
    cannot run a program with fewer queues than its peer has, so the kernel runs it later."""
    host = hosts("veth-1500")[0]
    host.run(["ip", "link", "add", "late0", "type", "veth", "peer", "name", "late1",
              "numtxqueues", "2", "numrxqueues", "2"])  # fmt: skip
    try:
        host.run(["ethtool", "-L", "late1", "rx", "2", "tx", "2"])
        for name in ("late0", "late1"):
            host.run(["ip", "link", "set", name, "up"])
        a, b = probe(host), probe(host)
        a.open("packet:late1", address="10.78.0.1/24")
        b.open("xdp:late0", address="10.78.0.2/24")
        assert "xdpgeneric" in host.run(["ip", "link", "show", "late0"]).stdout
        yield a, b
    finally:
        host.run(["ip", "link", "del", "late0"])


# Frames across the wire


def test_open_reports_interface_properties(xdp_pair: tuple[Probe, Probe], hosts: Hosts) -> None:
    info = xdp_pair[0].info
    host = hosts("veth-1500")[0]
    assert info["mac"] == host.mac and info["mtu"] == 1500
    assert info["address"] == host.own_address and not info["shares"]
    assert "1 queue, copy mode" in info["summary"] and "its own" in info["summary"]
    assert host.has_xdp_program()


# Frames of a peer with offloads


@pytest.mark.parametrize("length", [64900, 30001, 5000, 10])
def test_uncut_segments_of_the_peer_are_split(merged: tuple[Probe, Probe], length: int) -> None:
    """The peer's kernel does not cut segments and completes no checksums: 64 KiB in one frame."""
    a, b = merged
    payload = os.urandom(length)
    a.send(tcp_frame(a, b, payload, flags=0x19, seq=0xFFFF0000), segment=MSS, pieces=3)
    frames = b.receive_bytes(len(payload))
    assert payload_of(frames) == payload and all(frame.good for frame in frames)
    assert (len(frames[0].data) > 1514) == (length > MSS)
    at = 0xFFFF0000
    for frame in frames:
        data = frame.data
        assert sequence_of(data) == at % 2**32
        assert int.from_bytes(data[16:18], "big") == len(data) - 14
        assert data[47] == (0x19 if frame is frames[-1] else 0x10)
        at += len(data) - HEADERS
    assert b.count()["lost"] == 0


def test_long_frame_continues_in_the_next_receive(merged: tuple[Probe, Probe]) -> None:
    a, b = merged
    payload = os.urandom(64000)
    a.send(tcp_frame(a, b, payload), segment=MSS)
    a.send(tcp_frame(a, b, b"next"))
    frames = [frame for _ in range(40) for frame in b.receive(1, 0.05)]
    assert payload_of(frames) == payload + b"next"
    for _ in range(100):  # more chunks than there are: each comes back
        a.send(tcp_frame(a, b, payload), segment=MSS)
        assert payload_of(b.receive(36)) == payload
    assert b.count()["lost"] == 0


@pytest.mark.parametrize("wire", ["veth-1500", "veth-9000"])
def test_offloads_of_the_peer_do_no_harm(probe: Make, hosts: Hosts, wire: str) -> None:
    """The peer's kernel cuts for an interface with a program, and may complete no checksum."""
    first, second = hosts(wire)
    a, b = opened(probe, first, "packet:eth0"), opened(probe, second)
    payload = os.urandom(64001)
    a.send(tcp_frame(a, b, payload), segment=MSS)
    frames = b.receive_bytes(len(payload))
    assert payload_of(frames) == payload
    assert all(frame.good or checksum_ok(frame.data) for frame in frames)


@pytest.mark.parametrize("wire", ["veth-9000"])
def test_damaged_long_frame_is_dropped(xdp_pair: tuple[Probe, Probe]) -> None:
    """Segments of a long frame get new headers, so damage must be found before."""
    a, b = xdp_pair
    good = tcp_frame(a, b, os.urandom(5000), complete=True)
    in_payload, in_ip, in_length = (bytearray(bytes(good)) for _ in range(3))
    in_payload[4500] ^= 1
    in_ip[22] ^= 1  # TTL
    in_length[16:18] = (46).to_bytes(2, "big")  # the packet ends within the TCP header
    in_length[24:26] = bytes(2)
    for bad in (in_payload, in_ip, in_length):
        a.send(bytes(bad))
    a.send(good)
    frames = b.receive_bytes(len(good.payload))
    assert payload_of(frames) == good.payload
    assert b.count()["lost"] == 3


# Received and filtered frames


def test_arp_and_icmp_reach_the_port(xdp_pair: tuple[Probe, Probe]) -> None:
    a, b = xdp_pair
    request = arp_request(a.info["mac"], a.info["address"], b.info["address"])
    b.receive(8, 0.05)
    assert not b.arm(True)
    a.send(request)
    assert b.wait(20), "ARP wakes a sleeper"
    b.arm(False)
    assert request in [f.data[: len(request)] for f in b.receive(1, 0)], "at once"
    addresses = (a.info["address"], b.info["address"], a.info["mac"], b.info["mac"])
    a.send(icmp_unreachable(*addresses, tcp_frame(b, a)))
    assert [f.data[23] for f in b.receive(1)] == [1]


def test_descriptor_is_readable_when_frames_wait(xdp_pair: tuple[Probe, Probe]) -> None:
    descriptor_tells_of_frames(*xdp_pair)


def test_tcp_ports_limit_an_own_address(probe: Make, hosts: Hosts) -> None:
    first, second = hosts("veth-1500")
    a, b = opened(probe, first), probe(second)
    b.open("xdp:eth0", address=f"{UNUSED_ADDRESS}/24", ports="6000-6099")
    assert 6000 <= b.reserve() <= 6099
    for dport in (5999, 6000, 6099, 6100):
        a.send(tcp_frame(a, b, b"%d" % dport, dport=dport))
    assert [f.data[HEADERS:] for f in b.receive_all(2)] == [b"6000", b"6099"]


def test_kernel_is_silent_about_held_ports(xdp_shared: tuple[Probe, Probe], hosts: Hosts) -> None:
    a, b = xdp_shared
    host = hosts("veth-1500")[1]
    resets = host.counters()["TcpOutRsts"] + 1
    local, moved = kernel_is_silent(a, b, host, 6 + 42)
    assert moved["TcpInSegs"] == 0, "the kernel must not even see them"
    a.send(tcp_frame(a, b, dport=45))
    wait_until(lambda: host.counters()["TcpOutRsts"] == resets, 20, "others are the kernel's")
    assert not b.receive(1, 0.1)
    b.do("close")
    assert local not in listening(host) and not host.has_xdp_program()


def test_many_ports_are_received(xdp_shared: tuple[Probe, Probe]) -> None:
    a, b = xdp_shared
    ports = [b.reserve() for _ in range(300)]
    for local in ports:
        a.send(tcp_frame(a, b, dport=local), flush=False)
    a.do("flush 0")
    assert [int.from_bytes(f.data[36:38], "big") for f in b.receive(300)] == ports


def test_kernel_tcp_works_beside_port(xdp_shared: tuple[Probe, Probe], hosts: Hosts) -> None:
    """The kernel's TCP, with all offloads, on the interface of an open port."""
    first, second = hosts("veth-1500")
    xdp_shared[1].reserve()
    kernel_moves_bytes(first, second, xdp_shared[1])


@BOTH_SENDERS
def test_losses_are_counted_once(xdp_pair: tuple[Probe, Probe]) -> None:
    """A sleeping reader loses the frames beyond its rings, and counts them."""
    a, b = xdp_pair
    big = bytes(tcp_frame(a, b, bytes(1448))).hex()
    sent = json.loads(a.do(f"blast 0 200 {HEADERS} 0 {CHECKSUM_START} 16 {big}"))
    a.do("flush 0")
    waiting = 0
    while got := len(b.receive(200, 0.05)):
        waiting += got
    assert waiting >= 3000, "the rings are too small"
    assert sent["frames"] > waiting
    counts = b.count()
    assert waiting + counts["lost"] + a.count()["errors"] == sent["frames"]
    assert counts["lost"] == counts["xdp_dropped"] + counts["xdp_ring_full"] > 0
    assert counts["xdp_invalid"] == 0
    again = b.count()
    assert again["lost"] == again["xdp_dropped"] == again["xdp_ring_full"] == 0


# Opening and ending


def test_invalid_opens_are_refused(probe: Make, hosts: Hosts) -> None:
    host = hosts("veth-1500")[0]
    one = probe(host)
    own = f"{host.own_address}/24"
    for device, number, part in (
        ("xdp:eth7", errno.ENODEV, "hostNetwork"),
        ("xdp:lo", errno.EOPNOTSUPP, "not an Ethernet"),
        ("xdp:eth0,mode=zerocopy", errno.EOPNOTSUPP, "set mode=auto"),
        ("xdp:eth0,mode=fast", errno.EINVAL, "mode=auto, mode=zerocopy or mode=copy"),
        ("xdp:eth0,queue=1", errno.EINVAL, "unknown option"),
        ("xdp:eth0,mode=copy,send=packet", errno.EINVAL, "send=auto or send=xdp"),
        ("xdp:eth0,mode=copy,", errno.EINVAL, "unknown option"),
        ("xdp:eth0,mode=", errno.EINVAL, "unknown option"),
        ("xdp:,mode=copy", errno.EINVAL, "no interface"),
    ):
        assert refusal(one, device, address=own)[0] == number, device
        assert part in refusal(one, device, address=own)[1], device
    for options, number, part in (
        ({"queues": 2}, errno.EINVAL, "set instances = 1"),
        ({"address": f"{host.address}/24"}, errno.EADDRINUSE, "address = kernel"),
        ({"address": own, "mac": "02:55:00:00:00:09"}, errno.EINVAL, "remove it"),
        ({"address": own, "mtu": 9000}, errno.EINVAL, "1500"),
    ):
        refused = refusal(one, "xdp:eth0", **options)
        assert refused[0] == number and part in refused[1], options
    assert not host.has_xdp_program()
    one.open("xdp:eth0,mode=copy", address=own)


def test_second_process_is_refused_with_options(
    xdp_pair: tuple[Probe, Probe], probe: Make, hosts: Hosts
) -> None:
    host = hosts("veth-1500")[0]
    number, text = refusal(probe(host), "xdp:eth0,mode=copy")
    assert number == errno.EBUSY and "another process" in text and "packet:eth0" in text
    a, b = xdp_pair
    b.send(tcp_frame(b, a, b"still"))
    assert payload_of(a.receive()) == b"still"


def test_second_process_gets_a_packet_port(probe: Make, hosts: Hosts) -> None:
    """Both share the kernel's address, and each receives the frames of its own local ports."""
    host, other = hosts("veth-1500")
    first, second = opened(probe, host, own=False), opened(probe, host, own=False)
    assert "xdp eth0" in first.info["summary"] and "packet eth0" in second.info["summary"]
    assert "for another process" in second.info["summary"]
    peer = opened(probe, other)
    for port in (first, second):
        local = port.reserve()
        peer.send(tcp_frame(peer, port, b"%d" % local, dport=local))
        assert payload_of(port.receive()) == b"%d" % local
    first.do("close")
    third = opened(probe, host, own=False)
    assert "xdp eth0" in third.info["summary"]


def test_queue_of_an_ended_process_is_awaited(probe: Make, hosts: Hosts) -> None:
    """The kernel frees it late on a busy host. No XDP program says that a process is alive."""
    host = hosts("veth-1500")[0]
    ended = host.popen([sys.executable, "-c", HAS_QUEUE], stdout=subprocess.PIPE)
    assert ended.stdout and ended.stdout.readline() == "bound\n"
    port = opened(probe, host, own=False)
    assert "xdp eth0" in port.info["summary"]
    assert ended.wait(20) == 0


@BOTH_SENDERS
def test_processes_of_a_host_reach_each_other(probe: Make, hosts: Hosts, sender: str) -> None:
    """The XDP program does not see their frames, and an AF_XDP socket cannot send them."""
    host = hosts("veth-1500")[0]
    first = opened(probe, host, f"xdp:eth0,send={sender}", own=False)
    second = opened(probe, host, "packet:eth0", own=False)
    payload = os.urandom(60000)
    for a, b in ((first, second), (second, first)):
        a.send(tcp_frame(a, b, payload, dport=b.reserve()), segment=MSS)
        frames = b.receive_bytes(len(payload))
        assert payload_of(frames) == payload and all(frame.good for frame in frames)


@BOTH_SENDERS
def test_broadcast_reaches_other_processes_of_the_host(
    probe: Make, hosts: Hosts, sender: str
) -> None:
    """Another process may have the address that an ARP request asks for."""
    host = hosts("veth-1500")[0]
    first = opened(probe, host, f"xdp:eth0,send={sender}")
    second = probe(host)
    second.open("packet:eth0", address=f"{UNUSED_ADDRESS}/24")
    first.send(arp_request(first.info["mac"], first.info["address"], UNUSED_ADDRESS))
    (request,) = second.receive(1, 2.0)
    assert request.data[12:14] == b"\x08\x06"


def test_port_opens_again_at_once(probe: Make, hosts: Hosts) -> None:
    """The kernel frees a queue later than its socket is closed."""
    first, second = hosts("veth-1500")
    a, b = opened(probe, first), probe(second)
    before = None
    for number in range(5):
        b.open("xdp:eth0", address=f"{second.own_address}/24")
        a.send(tcp_frame(a, b, b"%d" % number))
        assert payload_of(b.receive()) == b"%d" % number
        b.do("close")
        before = before or b.descriptors()
        assert b.descriptors() == before


def test_killed_process_leaves_no_program(probe: Make, hosts: Hosts) -> None:
    host = hosts("veth-1500")[0]
    one = opened(probe, host, own=False)
    local = one.reserve()
    assert host.has_xdp_program()
    one.kill()
    assert not host.has_xdp_program() and local not in listening(host)
    opened(probe, host)


def test_forked_child_keeps_nothing(probe: Make, hosts: Hosts) -> None:
    """A child that outlives its parent keeps neither program nor ports nor queues."""
    first, second = hosts("veth-1500")
    a, b = opened(probe, first), opened(probe, second, own=False)
    local = b.reserve()
    child = int(b.do("fork 20000"))
    a.send(tcp_frame(a, b, b"after the fork", dport=local))
    assert payload_of(b.receive()) == b"after the fork"
    try:
        b.kill()
        assert os.path.exists(f"/proc/{child}")
        assert not second.has_xdp_program() and local not in listening(second)
        opened(probe, second)
    finally:
        os.kill(child, 9)


@pytest.mark.parametrize(
    ("capabilities", "part"),
    [("-all", "CAP_NET_ADMIN"), ("-all,+net_raw", "CAP_BPF")],
)
def test_missing_privileges_are_named(
    probe: Make, hosts: Hosts, capabilities: str, part: str
) -> None:
    host = hosts("veth-1500")[0]
    args = (f"--bounding-set={capabilities}", f"--inh-caps={capabilities}")
    # Without CAP_IPC_LOCK, too.
    number, text = refusal(probe(host, "setpriv", *args), "xdp:eth0")
    assert number == errno.EPERM and part in text and "packet:eth0" in text


def test_four_capabilities_suffice(probe: Make, hosts: Hosts) -> None:
    first, second = hosts("veth-1500")
    some = "-all,+net_raw,+net_admin,+bpf"
    poor = probe(first, "prlimit", "--memlock=1048576", "setpriv", f"--bounding-set={some}",
                 f"--inh-caps={some}")  # fmt: skip
    number, text = refusal(poor, "xdp:eth0")
    assert number == errno.ENOBUFS and "ulimit -l" in text and "CAP_IPC_LOCK" in text
    some += ",+ipc_lock"
    one = probe(first, "setpriv", f"--bounding-set={some}", f"--inh-caps={some}")
    one.open("xdp:eth0")
    other = opened(probe, second)
    other.send(tcp_frame(other, one, b"hello", dport=one.reserve()))
    assert payload_of(one.receive()) == b"hello"


def test_foreign_program_is_not_replaced(probe: Make, hosts: Hosts) -> None:
    host = hosts("veth-1500")[0]
    args = [PROBE.parent / "xdp_check", host.mac, host.address, "1-2", "eth0"]
    foreign = host.popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert foreign.stdout and foreign.stdout.readline() == "attached\n"
    number, text = refusal(probe(host), "xdp:eth0")
    assert number == errno.EBUSY and "another XDP program" in text and "packet:eth0" in text
    assert host.has_xdp_program()
    foreign.communicate(timeout=10)
    opened(probe, host)


# The link


def test_interface_goes_down_and_comes_back(probe: Make, hosts: Hosts) -> None:
    first, second = hosts("veth-1500")
    a, b = opened(probe, first), opened(probe, second)
    b.receive(8, 0.05)
    second.set_link(False)
    try:
        with pytest.raises(PortError) as down:
            b.receive()
        assert down.value.number == errno.ENETDOWN
        with pytest.raises(PortError) as down:
            b.receive()
        assert down.value.number == errno.ENETDOWN, "until it is up again"
        with pytest.raises(PortError) as send_down:
            b.send(tcp_frame(b, a, bytes(2000)), segment=MSS)
        assert send_down.value.number == errno.ENETDOWN
        assert not b.arm(True), "a poller may sleep while the link is down"
        b.arm(False)
    finally:
        second.set_link(True)
    assert payload_of(until_received(a, b)) == b"back"
    b.send(tcp_frame(b, a, b"there"))
    assert payload_of(a.receive()) == b"there"


def test_removed_interface_is_enodev(probe: Make, hosts: Hosts) -> None:
    host = hosts("veth-1500")[0]
    one = probe(host)
    removed_interface_is_enodev(host, one, "xdp")
    assert not one.arm(True)
    one.do("close")


def test_interface_that_left_and_returned_is_enodev(probe: Make, hosts: Hosts) -> None:
    one = probe(hosts("veth-1500")[0])
    interface_leaves_and_returns(*hosts("veth-1500"), one, "xdp", 1)


# Several queues of the interface


@pytest.fixture
def wide(hosts: Hosts) -> Iterator[tuple[Host, str]]:
    """A host with a veth of four queues: wide0 and, for the peer, wide1."""
    host = hosts("veth-1500")[0]
    queues = ["numrxqueues", "4", "numtxqueues", "4"]
    host.run(["ip", "link", "add", "wide0", *queues, "type", "veth", "peer", "name", "wide1",
              *queues])  # fmt: skip
    try:
        for name in ("wide0", "wide1"):
            host.run(["ethtool", "-L", name, "rx", "4", "tx", "4"])
            host.run(["ip", "link", "set", name, "up"])
        yield host, "wide0"
    finally:
        host.run(["ip", "link", "del", "wide0"])


def test_all_queues_are_received(wide: tuple[Host, str], probe: Make) -> None:
    """The interface chooses the queue of a frame, and the port hears all of them."""
    host, interface = wide
    a, b = probe(host), probe(host)
    a.open("packet:wide1", 4, address="10.78.0.1/24")
    b.open(f"xdp:{interface}", address="10.78.0.2/24")
    assert "4 queues" in b.info["summary"]
    assert (b.count()["xdp_sockets"], b.count()["xdp_zero_copy"]) == (4, 0)
    for number in range(64):
        a.send(tcp_frame(a, b, b"%d" % number, sport=40000 + number), queue=number % 4)
    got = sorted(int(f.data[HEADERS:]) for f in b.receive(64))
    assert got == list(range(64))
    payload = os.urandom(60000)
    a.send(tcp_frame(a, b, payload), segment=MSS)
    assert payload_of(b.receive_bytes(len(payload))) == payload
