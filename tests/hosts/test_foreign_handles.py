# SPDX-License-Identifier: Apache-2.0
"""A connect to something other than a HARP rank fails in time, and one line names the peer."""

from __future__ import annotations

import random
import re
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ranks import REMOTE_ERROR, SYSTEM_ERROR, Failed, Link, Rank, connect, packet_site

from tools.hosts.lab import Host, Lab

TIMEOUT_MS = 3000
SLACK_MS = 2400  # for a busy machine; a second try would end after another TIMEOUT_MS


@pytest.fixture
def rank(lab: Lab, tmp_path: Path) -> Iterator[Rank]:
    site = packet_site(tmp_path / "0", lab.hosts[0], timeout_ms=TIMEOUT_MS)
    with Rank(site) as made:
        yield made.init()


@pytest.fixture
def peer(lab: Lab, tmp_path: Path) -> Iterator[Rank]:
    site = packet_site(tmp_path / "1", lab.hosts[1], timeout_ms=TIMEOUT_MS)
    with Rank(site) as made:
        yield made.init()


def refused(rank: Rank, handle: str, within_ms: float = TIMEOUT_MS / 2) -> tuple[int, str]:
    """NCCL's error code and the only warning of a connect that must fail."""
    before = len(rank.warnings)
    with pytest.raises(Failed) as failure:
        rank.connect(handle, ms=int(max(within_ms, TIMEOUT_MS)) + 1000)
    assert failure.value.call == "connect"
    assert failure.value.ms < within_ms, str(failure.value)
    (warning,) = rank.warnings[before:]
    return failure.value.code, warning


def with_check(handle: bytes) -> str:
    """The handle with a valid checksum: only its contents are wrong. The hash (FNV-1a) is written
    out here, so that a change of the plugin's hash does not go unnoticed."""
    value = 2166136261
    for byte in handle[:44]:
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return (handle[:44] + struct.pack("!I", value) + handle[48:]).hex()


def test_sockets_of_nccl_refuse_every_handle(rank: Rank) -> None:
    """They look at the address only if the handle has a number of connections that is not negative.
    Half of all random numbers are. Older ones have the number elsewhere."""
    for handle in (bytes.fromhex(rank.listen()[1]) for _ in range(24)):
        for place in (28, 40):
            assert struct.unpack("=i", handle[place : place + 4])[0] >= 0, place


REMEDY = "Both hosts need the same libnccl-net.so and a ztcp*.conf"


def test_random_bytes_are_refused_as_handle(rank: Rank, peer: Rank) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    magic = bytes.fromhex(peer.listen()[1])[:2]
    handles = [draw.randbytes(128) for _ in range(8)] + [magic + draw.randbytes(126), bytes(128)]
    for handle in handles:
        if handle[:2] in (b"\x02\0", b"\x0a\0"):
            continue  # it looks like a socket's
        code, warning = refused(rank, handle.hex())
        assert code == SYSTEM_ERROR
        start = handle[:4].hex(" ")
        assert f"the peer's handle is not HARP's (it begins with {start})" in warning
        assert REMEDY in warning
    connect(rank, peer).move()


def test_damaged_handle_is_refused(rank: Rank, peer: Rank) -> None:
    """One flipped bit anywhere in the bytes that the checksum covers."""
    _, text = peer.listen()
    handle = bytearray.fromhex(text)
    for at in (0, 2, 5, 9, 24, 30, 43, 45):
        handle[at] ^= 0x10
        code, warning = refused(rank, handle.hex())
        handle[at] ^= 0x10
        assert code == SYSTEM_ERROR and "is not HARP's" in warning


@pytest.mark.parametrize("at", [0, 1])
def test_handle_with_other_magic_is_refused(rank: Rank, peer: Rank, at: int) -> None:
    """Another kind of handle with a valid checksum."""
    handle = bytearray.fromhex(peer.listen()[1])
    handle[at] ^= 0x10
    code, warning = refused(rank, with_check(bytes(handle)))
    assert code == SYSTEM_ERROR and "is not HARP's" in warning


def test_inconsistent_handle_is_refused(rank: Rank, peer: Rank) -> None:
    handle = bytearray.fromhex(peer.listen()[1])
    for instances in (0, 9, 255):
        handle[24] = instances
        _, warning = refused(rank, with_check(bytes(handle)))
        assert f"the handle of the peer at {peer.site.address} contradicts itself" in warning


def sockets_handle(family: int, address: bytes, port: int) -> str:
    """A handle of NCCL's socket transport: its listening address, a magic number, counts."""
    name = struct.pack("=H", family) + struct.pack("!H", port) + address
    counts = struct.pack("=QII", 0x564AB9F2FC4B9D6C, 1, 0)
    return (name.ljust(32, b"\0") + counts).ljust(128, b"\0").hex()


@pytest.mark.parametrize("api", [4, 12])
def test_socket_transport_handle_is_refused(lab: Lab, tmp_path: Path, api: int) -> None:
    """The peer declined HARP and uses sockets."""
    address = lab.hosts[1].address
    site = packet_site(tmp_path / "0", lab.hosts[0], timeout_ms=TIMEOUT_MS)
    with Rank(site, api) as rank:
        rank.init()
        handle = sockets_handle(socket.AF_INET, socket.inet_aton(address), 41000)
        code, warning = refused(rank, handle if api > 4 else handle[:128])
    assert code == SYSTEM_ERROR
    assert f"the peer at {address} port 41000 uses a socket transport, not HARP" in warning
    assert REMEDY in warning


def test_ipv6_socket_transport_handle_is_refused(rank: Rank) -> None:
    address = socket.inet_pton(socket.AF_INET6, "fd00::77:2")
    handle = sockets_handle(socket.AF_INET6, bytes(4) + address, 4711)
    _, warning = refused(rank, handle)
    assert "the peer at fd00::77:2 port 4711 uses a socket transport" in warning


@pytest.mark.parametrize("versions", [(4, 4), (7, 9), (0, 0)])
def test_unsupported_wire_version_is_refused(
    rank: Rank, peer: Rank, versions: tuple[int, int]
) -> None:
    handle = bytearray.fromhex(peer.listen()[1])
    handle[2:4] = versions
    code, warning = refused(rank, with_check(bytes(handle)))
    assert code == SYSTEM_ERROR
    low, high = versions
    assert f"the peer at {peer.site.address} speaks wire versions {low} to {high}" in warning
    assert "this HARP 1 to 3" in warning
    assert REMEDY in warning


def test_newer_release_with_common_wire_version_is_accepted(rank: Rank, peer: Rank) -> None:
    listener, text = peer.listen()
    handle = bytearray.fromhex(text)
    handle[3] = 9
    sends = rank.connect(with_check(bytes(handle)))
    Link(rank, peer, sends, peer.accept(listener)).move()


def test_connect_to_closed_listener_fails(rank: Rank, peer: Rank) -> None:
    listener, handle = peer.listen()
    peer.do("unlisten", listener)
    code, warning = refused(rank, handle, TIMEOUT_MS + SLACK_MS)
    assert code == REMOTE_ERROR
    assert f"the link to {peer.site.address}:" in warning


def test_connect_to_ended_process_fails(rank: Rank, peer: Rank) -> None:
    _, handle = peer.listen()
    peer.signal(9)
    peer.wait()
    code, warning = refused(rank, handle, TIMEOUT_MS + SLACK_MS)
    assert code == REMOTE_ERROR
    assert f"the link to {peer.site.address}:" in warning
    assert "no process listens on the peer's port" in warning
    assert "a firewall there rejects this port (nft list ruleset)" in warning


def moved(peer: Rank, address: str, port: int) -> str:
    """A handle of the peer with another address and port."""
    handle = bytearray.fromhex(peer.listen()[1])
    handle[4:8] = socket.inet_aton(address)
    handle[8:10] = struct.pack("!H", port)
    return with_check(bytes(handle))


def test_connect_to_unused_address_times_out(rank: Rank, peer: Rank) -> None:
    code, warning = refused(rank, moved(peer, "10.77.0.77", 5000), TIMEOUT_MS + SLACK_MS)
    assert code == REMOTE_ERROR
    limit = rf"timeout_ms \({TIMEOUT_MS}\): is"
    flow = (
        f"flow 0: Connection timed out; the peer did not answer within {limit} its process stopped"
    )
    link = f"0 of 1 flows are open after {limit} the peer's process alive"  # on a busy machine
    assert re.search(f"the link to 10.77.0.77:5000 failed: ({flow}|{link})", warning), warning


def test_connect_without_arp_reply_is_ehostunreach(lab: Lab, tmp_path: Path, peer: Rank) -> None:
    """timeout_ms is long enough for all ARP requests, one a second, so HARP knows the reason."""
    with Rank(packet_site(tmp_path / "0", lab.hosts[0], timeout_ms=8000)) as rank:
        rank.init()
        code, warning = refused(rank, moved(peer, "10.77.0.77", 5000), 5000)
    assert code == REMOTE_ERROR
    assert "the link to 10.77.0.77:5000 failed: flow 0: No route to host" in warning
    assert "the peer's host does not answer ARP: are both NICs in one network?" in warning


# A server over the kernel's TCP: it prints its port, accepts connections one by one, and sends the
# given text, sends nothing, or closes.
SERVER = """
import socket, sys, time
server = socket.socket()
server.bind(("0.0.0.0", 0))
server.listen()
print(server.getsockname()[1], flush=True)
held = []
while True:
    connection, _ = server.accept()
    held.append(connection)
    if sys.argv[1] == "close":
        connection.close()
    else:
        connection.sendall(bytes.fromhex(sys.argv[1]))
"""


@contextmanager
def server(host: Host, says: str) -> Iterator[int]:
    """Runs a server over a host's kernel TCP. Yields its port."""
    process = host.popen([sys.executable, "-c", SERVER, says], stdout=subprocess.PIPE)
    assert process.stdout
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait(20)


def test_connect_to_foreign_server_fails(lab: Lab, rank: Rank, peer: Rank) -> None:
    hello = b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n" * 4
    with server(lab.hosts[1], hello.hex()) as port:
        code, warning = refused(rank, moved(peer, lab.hosts[1].address, port))
    assert code == SYSTEM_ERROR
    place = f"{lab.hosts[1].address}:{port}"
    assert f"the link to {place} failed: the program that answers is not HARP" in warning


def test_connect_to_closing_server_fails(lab: Lab, rank: Rank, peer: Rank) -> None:
    with server(lab.hosts[1], "close") as port:
        code, warning = refused(rank, moved(peer, lab.hosts[1].address, port))
    assert code == REMOTE_ERROR
    assert f"the link to {lab.hosts[1].address}:{port} failed" in warning


@pytest.mark.parametrize("says", ["", "68"], ids=["nothing", "too little"])
def test_connect_to_silent_server_times_out(lab: Lab, rank: Rank, peer: Rank, says: str) -> None:
    began = time.monotonic()
    with server(lab.hosts[1], says) as port:
        code, warning = refused(
            rank, moved(peer, lab.hosts[1].address, port), TIMEOUT_MS + SLACK_MS
        )
    assert code == REMOTE_ERROR
    assert (time.monotonic() - began) * 1e3 > TIMEOUT_MS * 0.9
    assert f"the link to {lab.hosts[1].address}:{port} failed: 0 of 1 flows are open" in warning
    assert f"after timeout_ms ({TIMEOUT_MS})" in warning
    assert "does a firewall let TCP through?" in warning
