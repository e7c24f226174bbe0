# SPDX-License-Identifier: Apache-2.0
"""Hosts with several NICs, and a peer of a release that knows only one: wire version 2, no list of
NICs in the welcome, no device in the handle. The peer is a program on the other host's kernel."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from ranks import Rank, wait_until
from several_nics import all_up, parts_of_handle, rails, uses
from test_foreign_handles import with_check
from unauthenticated_peers import UnauthenticatedPeer, hello

from tools.hosts.lab import Host
from tools.hosts.rails import Rails

__all__ = ["rails"]

SIZE = 60_000
OLD = (1, 2)
WELCOME = 64  # bytes
DATA, LAST = 1, 1  # of a chunk header

# Accepts connections, answers each hello with a welcome of version 2, and prints each hello's epoch
# and the bytes of chunks so far at that time. At the end of its input, it prints all bytes. A new
# connection of a flow must come from the same address, as those releases require.
ACCEPTOR = """
import json, select, socket, struct, sys
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
current, greeting, data, source = None, b"", b"", None
while True:
    ready, _, _ = select.select([sys.stdin, listener] + ([current] if current else []), [], [])
    if current in ready:
        try:
            got = current.recv(1 << 16)
        except ConnectionResetError: # the peer replaces the connection
            got = b""
        if not got:
            current = None
        elif len(greeting) < 80:
            greeting += got
            if len(greeting) >= 80:
                link, flow, flows, epoch = struct.unpack_from("!QHHI", greeting, 24)
                welcome = b"harp" + struct.pack("!HHQHHI", 2, 0, link, flow, 1500, epoch)
                current.sendall(welcome + bytes(32) + struct.pack("!Q", len(data)))
                print(json.dumps([epoch, len(data)]), flush=True)
                data, greeting = data + greeting[80:], greeting[:80]
        else:
            data += got
    if listener in ready:
        made, (address, _) = listener.accept()
        if source in (None, address):
            current, greeting, source = made, b"", address
        else:
            made.close()
    if sys.stdin in ready:
        print(data.hex(), flush=True)
        break
"""


def message(number: int, size: int = SIZE) -> bytes:
    """The bytes that tests/hosts/rank.c sends and expects."""
    return bytes((number + i) % 251 for i in range(size))


def chunk(number: int, size: int = SIZE) -> bytes:
    """A message in a single chunk."""
    header = struct.pack("!QQIBBH", number, 0, size, DATA, LAST, 0)
    return header + message(number, size)


def known_to_older(chunks: bytes) -> bytes:
    """Chunks of whole messages, without the flags that an older receiver ignores."""
    known = bytearray(chunks)
    for flags in range(21, len(chunks), 24 + SIZE):
        known[flags] &= LAST
    return bytes(known)


@contextmanager
def connection(host: Host, handle: str) -> Iterator[UnauthenticatedPeer]:
    """A connection of the host's kernel to a listener."""
    (port,) = struct.unpack("!H", bytes.fromhex(handle)[8:10])
    peer = UnauthenticatedPeer(host, parts_of_handle(handle)[0], port)
    try:
        assert peer.do("open 1")[0] == 1
        yield peer
    finally:
        peer.process.kill()
        peer.process.wait(20)


def older_hello(handle: str, epoch: int = 0) -> bytes:
    made = hello(bytes.fromhex(handle)[28:44], OLD)
    return made[:36] + struct.pack("!I", epoch) + made[40:]


def welcome(peer: UnauthenticatedPeer) -> tuple[int, int]:
    """The version of the welcome, and the bytes that the receiver has received before."""
    wait_until(lambda: len(peer.do("state")[2]) >= WELCOME, 10, "no welcome")
    time.sleep(0.2)
    text = peer.do("state")[2]
    assert len(text) == WELCOME  # no list follows
    return struct.unpack_from("!H", text, 4)[0], struct.unpack_from("!Q", text, 56)[0]


@contextmanager
def rank_of(rails: Rails, folder: Path) -> Iterator[Rank]:
    """A rank on the second host, which drives all of its NICs."""
    all_up(rails)
    with Rank(rails.site(folder, rails.lab.hosts[1])) as rank:
        yield rank.init(rails.count)


def test_older_connector(rails: Rails, tmp_path: Path) -> None:
    with rank_of(rails, tmp_path) as rank:
        listener, handle = rank.listen(2)
        with connection(rails.lab.hosts[0], handle) as peer:
            peer.do(f"send {older_hello(handle).hex()}")
            assert welcome(peer) == (2, 0)
            peer.do(f"send {chunk(0).hex()}")
            rank.do("receive", rank.accept(listener), 1, SIZE, 10_000)
            uses(rank, {2: 1})
        assert rank.warnings == []


def test_older_connector_gets_new_connections(rails: Rails, tmp_path: Path) -> None:
    """It replaces its connection in the middle of a message, before any receive is posted."""
    text = chunk(0)
    with rank_of(rails, tmp_path) as rank, ExitStack() as stack:
        listener, handle = rank.listen(1)
        sent = 0
        for epoch in range(3):
            peer = stack.enter_context(connection(rails.lab.hosts[0], handle))
            peer.do(f"send {older_hello(handle, epoch).hex()}")
            assert welcome(peer) == (2, sent)
            part = text[sent : sent + 20_000] if epoch < 2 else text[sent:]
            peer.do(f"send {part.hex()}")
            sent += len(part)
            time.sleep(0.3)
        rank.do("receive", rank.accept(listener), 1, SIZE, 10_000)
        assert rank.warnings == []


@contextmanager
def acceptor(host: Host, address: str) -> Iterator["subprocess.Popen[str]"]:
    made = host.popen(
        [sys.executable, "-c", ACCEPTOR, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield made
    finally:
        made.kill()
        made.wait(20)


def older_handle(handle: str, address: str, port: int) -> str:
    """A handle of an older release for this address."""
    text = bytearray(bytes.fromhex(handle)[:64])
    text[2:4] = bytes(OLD)
    text[4:8] = bytes(map(int, address.split(".")))
    text[8:24] = struct.pack("!H", port).ljust(16, b"\0")
    text[24] = 1
    text[56:58] = bytes(2)
    return with_check(bytes(text)).ljust(256, "0")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("fails", [False, True], ids=["steady", "NIC down"])
def test_older_acceptor(rails: Rails, tmp_path: Path, fails: bool) -> None:
    """It would refuse a flow that comes from another NIC, so the flow waits for its own one."""
    first, second = rails.lab.hosts
    address = rails.address(first, 1)
    with rank_of(rails, tmp_path) as rank, acceptor(first, address) as peer:
        assert peer.stdin and peer.stdout
        handle = older_handle(rank.listen()[1], address, int(peer.stdout.readline()))
        comm = rank.connect(handle, device=1)
        assert json.loads(peer.stdout.readline()) == [0, 0]
        rank.do("send", comm, 4, SIZE, 10_000)
        if fails:
            rails.set_link(second, 1, False)
            rank.start("send", comm, 4, SIZE, 30_000)
            time.sleep(3)
            rails.set_link(second, 1, True)
            rank.finish(40)
        else:
            rank.do("send", comm, 4, SIZE, 10_000)
        uses(rank, {1: 1})
        time.sleep(0.3)
        peer.stdin.close()
        sent = known_to_older(bytes.fromhex(peer.stdout.read().split()[-1]))
        assert sent == b"".join(chunk(i)[:24] + message(i % 4) for i in range(8))
        assert [line for line in rank.warnings if "the device packet:nic1" not in line] == []
    all_up(rails)
