# SPDX-License-Identifier: Apache-2.0
"""Frames that are not HARP's reach the kernel through the XDP program: its counters are the same
with the program and without it."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from port_probe import ETHERNET, PROBE, Frame, arp_request, icmp_unreachable
from test_xdp_program import FIRST, LAST, changed, is_ours

from tools.hosts.lab import Host, Lab

pytestmark = pytest.mark.skipif(
    PROBE.exists() and not (PROBE.parent / "xdp_program.o").exists(),
    reason="this build has no XDP (no clang)",
)

FRAMES = 100_000 if os.environ.get("HARP_TEST_FULL") else 3000
SEED = 17
BURST = 128  # frames at once; the queue of a veth has 256

# Sends the frames of a file, each behind its length of two bytes. Waits for a line after a burst.
SEND = """
import socket, struct, sys
frames = open(sys.argv[1], "rb").read()
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
wire.bind(("eth0", 0))
at = sent = 0
while at < len(frames):
    (length,) = struct.unpack_from("!H", frames, at)
    wire.send(frames[at + 2 : at + 2 + length])
    at += 2 + length
    sent += 1
    if sent % int(sys.argv[2]) == 0:
        print(sent, flush=True)
        sys.stdin.readline()
"""

SYSCTLS = {  # the kernel's answers and its memory must depend on the frames alone
    "net.ipv4.icmp_ratelimit": 0,
    "net.ipv4.icmp_msgs_per_sec": 1_000_000,
    "net.ipv4.icmp_msgs_burst": 1_000_000,
    "net.ipv4.ipfrag_time": 600,
    "net.ipv4.ipfrag_high_thresh": 1 << 30,
}
SOURCE, TARGET = "02:77:00:00:00:01", "02:77:00:00:00:02"  # of the lab's hosts
PEER, OWN = "10.77.0.1", "10.77.0.2"
TYPES = (0x0800, 0x86DD, 0x0806, 0x8100, 0x88A8, 0x8847, 0x88CC, 0x8863, 0x0026, 0xFFFF)


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _ip(chance: random.Random, protocol: int, body: bytes, target: str = OWN) -> bytes:
    """An Ethernet frame with a right IPv4 header."""
    header = bytearray(
        struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), chance.randrange(65536), 0, 64,
                    protocol, 0, socket.inet_aton(PEER), socket.inet_aton(target))
    )  # fmt: skip
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("!H", header, 10, (total & 0xFFFF) + (total >> 16) ^ 0xFFFF)
    return _mac(TARGET) + _mac(SOURCE) + b"\x08\x00" + bytes(header) + body


def _segment(chance: random.Random, port: int, **more: object) -> bytes:
    flags = chance.choice((0x02, 0x10, 0x12, 0x14, 0x18, 0x11, 0x04))
    payload = chance.randbytes(chance.choice((0, 1, 20, 1400)))
    sport = chance.randrange(1024, 65536)
    one = Frame(PEER, OWN, sport, port, payload, flags=flags, complete=True, **more)  # type: ignore[arg-type]
    return bytes(one)


def _tagged(frame: bytes, vlan: int) -> bytes:
    return frame[:12] + struct.pack("!HH", 0x8100, vlan) + frame[12:]


def _random_frame(chance: random.Random) -> bytes:
    """A frame of a random kind; some are HARP's."""
    held, other = chance.randint(FIRST, LAST), chance.choice((22, 80, FIRST - 1, LAST + 1))
    ours = _segment(chance, held)
    datagram = struct.pack("!HHHH", 5000, held, 20, 0) + bytes(12)
    echo = struct.pack("!BBHHH", 8, 0, 0xF7FF, 0, 0)
    quoted = Frame(OWN, PEER, held, 4000)
    kinds = (
        lambda: _segment(chance, other),
        lambda: _segment(chance, held, fragment=chance.choice((0x2000, 0x2064, 100))),
        lambda: changed(ours, chance),
        lambda: _tagged(ours, chance.randrange(4096)),
        lambda: ours[:14] + b"\x46" + ours[15:],
        lambda: _mac("ff:ff:ff:ff:ff:ff") + ours[6:],
        lambda: _mac("02:77:00:00:00:33") + ours[6:],
        lambda: _mac("01:00:5e:00:00:01") + ours[6:],
        lambda: _ip(chance, 17, datagram),
        lambda: _ip(chance, 1, echo),
        lambda: _ip(chance, 17, datagram, "10.77.0.3"),
        lambda: _ip(chance, chance.randrange(256), chance.randbytes(chance.randrange(200))),
        lambda: icmp_unreachable(PEER, OWN, SOURCE, TARGET, quoted),
        lambda: arp_request(SOURCE, PEER, chance.choice((OWN, "10.77.0.99"))),
        lambda: ours[:12] + struct.pack("!H", chance.choice(TYPES)) + ours[14:],
        lambda: chance.randbytes(chance.randint(14, 1514)),
    )
    return chance.choice(kinds)()


def _foreign_frames(count: int) -> list[bytes]:
    chance = random.Random(SEED)
    found: list[bytes] = []
    while len(found) < count:
        frame = _random_frame(chance)
        if not is_ours(frame):
            found.append(frame)
    return found


def _counters(host: Host) -> Counter[str]:
    """The kernel's counters of all protocols, and those of the interface."""
    found = Counter(host.counters())
    for line in host.read("/proc/net/snmp6").splitlines():
        found[line.split()[0]] = int(line.split()[1])
    statistics = f"/sys/class/net/{host.interface}/statistics"
    said = host.run(["sh", "-c", f"cd {statistics} && grep . *"]).stdout
    for line in said.splitlines():
        name, _, value = line.partition(":")
        found[name] = int(value)
    return found


@contextmanager
def _program(host: Host) -> Iterator[None]:
    args = [PROBE.parent / "xdp_check", host.mac, host.address, f"{FIRST}-{LAST}", host.interface]
    holder = host.popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout and holder.stdout.readline() == "attached\n"
    yield
    assert host.has_xdp_program()
    holder.communicate(timeout=10)


def _send(source: Host, target: Host, file: Path) -> None:
    args = [sys.executable, "-c", SEND, file, BURST]
    sender = source.popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert sender.stdin and sender.stdout
    for line in sender.stdout:
        _await_frames(target, int(line))
        sender.stdin.write("\n")
        sender.stdin.flush()
    assert sender.wait(10) == 0


def _await_frames(host: Host, count: int) -> None:
    for _ in range(1000):
        if int(host.read(f"/sys/class/net/{host.interface}/statistics/rx_packets")) >= count:
            return
    pytest.fail(f"fewer than {count} frames arrive")


def _moved(file: Path, count: int, with_program: bool) -> dict[str, int]:
    """The counters that move when the frames arrive at a new host."""
    with Lab(hosts=2, wire="veth-1500") as lab:
        source, target = lab.hosts
        for host, other in (lab.hosts, lab.hosts[::-1]):
            host.run(["ip", "link", "set", host.interface, "mtu", "1600"])
            host.run(["ip", "neigh", "replace", other.address, "lladdr", other.mac, "nud",
                      "permanent", "dev", host.interface])  # fmt: skip
        target.run(["sysctl", "-qw", *(f"{key}={value}" for key, value in SYSCTLS.items())])
        with _program(target) if with_program else nullcontext():
            before = _counters(target)
            _send(source, target, file)
            _await_frames(target, count)
            after = _counters(target)
    after.subtract(before)
    return {name: moved for name, moved in after.items() if moved}


def test_foreign_frames_reach_the_kernel(tmp_path: Path) -> None:
    frames = _foreign_frames(FRAMES)
    file = tmp_path / "frames"
    file.write_bytes(b"".join(struct.pack("!H", len(frame)) + frame for frame in frames))
    without, through = (_moved(file, FRAMES, program) for program in (False, True))
    assert without["rx_packets"] == FRAMES and len(without) > 15, without
    assert min(without[name] for name in ("TcpInSegs", "IpReasmReqds", "UdpNoPorts")) > 50
    # A veth with a program counts bytes behind the Ethernet header, once the kernel has a packet.
    through["rx_bytes"] += ETHERNET * FRAMES
    different = {
        name: (without.get(name, 0), through.get(name, 0))
        for name in {*without, *through}
        if without.get(name, 0) != through.get(name, 0)
    }
    assert not different, "counters (without, with the program)"


def test_counters_show_frames_that_do_not_reach_the_kernel(tmp_path: Path) -> None:
    """This validates the test above: HARP's frames are missed."""
    file = tmp_path / "frames"
    chance = random.Random(SEED)
    frames = [_segment(chance, chance.randint(FIRST, LAST)) for _ in range(50)]
    file.write_bytes(b"".join(struct.pack("!H", len(frame)) + frame for frame in frames))
    without, through = (_moved(file, 50, program) for program in (False, True))
    assert (without["TcpInSegs"], through.get("TcpInSegs", 0)) == (50, 0)
