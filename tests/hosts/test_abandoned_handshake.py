# SPDX-License-Identifier: Apache-2.0
"""A sender replaces a flow's connection, and gives that up before it has the welcome. The receiver
waits for the next attempt: its link has not failed."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import wait_until
from unauthenticated_peers import (
    Scene,
    UnauthenticatedPeer,
    hello,
    scene_on,
    sites_of,
    token_of,
)

from tools.hosts.lab import Lab

SIZE = 4096
RECEIVED = 56  # offset in the welcome
# Connects from an address without a kernel, sends the hello, and resets the connection when the
# welcome arrives, without an acknowledgement. Answers ARP.
SCRIPT = """
import sys
from scapy.all import ARP, IP, TCP, Ether, Raw, conf
own, peer, port, hello = sys.argv[1], sys.argv[2], int(sys.argv[3]), bytes.fromhex(sys.argv[4])
socket = conf.L2socket(iface="eth0")
mac = socket.ins.getsockname()[4].hex(":") if hasattr(socket, "ins") else None
def to_peer(flags, seq, ack, data=b""):
    options = [("MSS", 1460)] if flags == "S" else []
    tcp = TCP(sport=40001, dport=port, flags=flags, seq=seq, ack=ack, options=options)
    socket.send(Ether(src=mac, dst=peer_mac) / IP(src=own, dst=peer) / tcp / data)
def arp(op, **fields):
    dst = fields.pop("dst", "ff:ff:ff:ff:ff:ff")
    socket.send(Ether(src=mac, dst=dst) / ARP(op=op, hwsrc=mac, psrc=own, **fields))
arp("who-has", pdst=peer)
peer_mac = None
while True:
    frame = socket.recv()
    if frame is None or frame.src == mac:
        continue
    if ARP in frame and frame[ARP].op == 2 and frame[ARP].psrc == peer and not peer_mac:
        peer_mac = frame[ARP].hwsrc
        to_peer("S", 1000, 0)
    elif ARP in frame and frame[ARP].op == 1 and frame[ARP].pdst == own:
        arp("is-at", dst=frame.src, hwdst=frame.src, pdst=frame[ARP].psrc)
    elif TCP in frame and frame[IP].dst == own:
        segment = frame[TCP]
        if segment.flags == "SA":
            to_peer("A", 1001, segment.seq + 1)
            to_peer("PA", 1001, segment.seq + 1, hello)
        elif frame[IP].len > 20 + 4 * segment.dataofs:
            to_peer("R", 1001 + len(hello), 0)
            break
"""


@pytest.fixture
def scene(lab: Lab, tmp_path: Path) -> Iterator[Scene]:
    with scene_on(lab, sites_of(lab, tmp_path)) as made:
        yield made


def chunk(message: int) -> bytes:
    """A message as one chunk."""
    header = struct.pack("!QQIBBH", message, 0, SIZE, 1, 1, 0)
    return header + bytes((message + i) % 251 for i in range(SIZE))


def open_link(scene: Scene, peer: UnauthenticatedPeer) -> int:
    """The receiver's number of a link whose only flow is the peer's connection."""
    peer.do("open 1")
    peer.do(f"send {hello(token_of(scene), epoch=0).hex()}")
    return scene.listening.accept(scene.listener[0])


def abandon(scene: Scene) -> None:
    """Opens a new connection of the flow, and resets it before the welcome is acknowledged."""
    (port,) = struct.unpack("!H", scene.handle[8:10])
    address = scene.listening.site.address
    args = [scene.host.own_address, address, str(port), hello(token_of(scene), epoch=1).hex()]
    process = scene.host.popen([sys.executable, "-c", SCRIPT, *args], stderr=subprocess.PIPE)
    assert process.wait(60) == 0, process.stderr and process.stderr.read()


def open_again(scene: Scene, peer: UnauthenticatedPeer) -> int:
    """Opens the flow's next connection. Returns the bytes that the welcome says were received."""
    peer.do("open 1")
    peer.do(f"send {hello(token_of(scene), epoch=2).hex()}")
    welcome = wait_until(lambda: peer.do("state")[2], 20, "there was no welcome")
    (received,) = struct.unpack("!Q", welcome[RECEIVED : RECEIVED + 8])
    return int(received)


def test_abandoned_handshake_does_not_fail_link(scene: Scene) -> None:
    rank = scene.listening
    with scene.unauthenticated_peer() as first, scene.unauthenticated_peer() as third:
        rank.start("receive", open_link(scene, first), 1, SIZE, 60_000)
        abandon(scene)
        assert open_again(scene, third) == 0
        third.do(f"send {chunk(0).hex()}")
        rank.finish()
    assert rank.warnings == []


def test_abandoned_handshake_keeps_unread_bytes(scene: Scene) -> None:
    """The first message has arrived, but no receive was posted for it."""
    rank = scene.listening
    with scene.unauthenticated_peer() as first, scene.unauthenticated_peer() as third:
        link = open_link(scene, first)
        first.do(f"send {chunk(0).hex()}")
        time.sleep(0.2)
        abandon(scene)
        assert open_again(scene, third) == len(chunk(0))
        third.do(f"send {chunk(1).hex()}")
        rank.do("receive", link, 2, SIZE, 60_000)
    assert rank.warnings == []
