# SPDX-License-Identifier: Apache-2.0
"""Who connects without the handle's token gets nowhere and is counted; the listener still serves.

The strangers are sockets of the other host's kernel.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ranks import Rank, connect, packet_site, wait_until

from harp.testing.lab import Host, Lab

STRANGER_S = 5  # what one who says nothing is given
ROOM = 256  # for so many of them at a time

# Led by lines: "open N" makes N connections; "send HEX", "reset" and "finish"
# (end of data) apply to all of them; "state" tells how many the other side
# has ended, and what it sent.
STRANGER = """
import select, socket, struct, sys
address, port = sys.argv[1], int(sys.argv[2])
held, ended, heard = [], 0, b""
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "open":
        for _ in range(int(rest)):
            try:
                held.append(socket.create_connection((address, port), 3))
            except OSError:
                ended += 1
    for one in list(held):
        try:
            if word == "send":
                one.sendall(bytes.fromhex(rest))
            elif word == "finish":
                one.shutdown(socket.SHUT_WR)
            elif word == "reset":
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.close()
                held.remove(one)
            elif word == "state" and select.select([one], [], [], 0)[0]:
                data = one.recv(4096)
                heard += data
                if not data:
                    raise ConnectionResetError
        except OSError:
            held.remove(one)
            ended += 1
    print(len(held), ended, heard.hex() or "-", flush=True)
"""


class Stranger:
    """Connections from a host's kernel to a listener."""

    def __init__(self, host: Host, address: str, port: int) -> None:
        words = [sys.executable, "-c", STRANGER, address, str(port)]
        self.process = host.popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def do(self, command: str) -> tuple[int, int, bytes]:
        """How many connections it holds, how many were ended, what was heard on them."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        held, ended, heard = self.process.stdout.readline().split()
        return int(held), int(ended), b"" if heard == "-" else bytes.fromhex(heard)

    def is_rid_of(self, count: int, timeout: float = 2) -> bytes:
        """Once so many connections were ended: what was heard on them."""

        def ended() -> bool:
            return self.do("state")[1] >= count

        wait_until(ended, timeout, f"{count} strangers were not turned away")
        return self.do("state")[2]


@dataclass
class Scene:
    """A listening rank, one that wants to connect to it, and where the strangers live."""

    listening: Rank
    other: Rank
    listener: tuple[int, str]
    host: Host

    @property
    def handle(self) -> bytes:
        return bytes.fromhex(self.listener[1])

    @contextmanager
    def stranger(self) -> Iterator[Stranger]:
        (port,) = struct.unpack("!H", self.handle[8:10])
        made = Stranger(self.host, self.listening.site.address, port)
        try:
            yield made
        finally:
            made.process.kill()
            made.process.wait(5)

    def counted(self) -> int:
        """The counter, as harp stat tells it."""
        words = [sys.executable, "-m", "harp", "stat", "--json", "--pid"]
        said = subprocess.run(
            [*words, str(self.listening.process.pid)],
            capture_output=True, text=True, timeout=20, check=True,
            env=self.listening.site.all_environment(),
        )  # fmt: skip
        (process,) = json.loads(said.stdout)["processes"]
        return int(process["totals"]["strangers"])

    def still_serves(self) -> None:
        connect(self.other, self.listening, self.listener).move()
        assert self.listening.warnings == []
        assert self.other.warnings == []


@pytest.fixture(params=[False, True], ids=["kernel address", "own address"])
def scene(lab: Lab, tmp_path: Path, request: Any) -> Iterator[Scene]:
    sites = [packet_site(tmp_path / str(host.index), host, request.param) for host in lab.hosts]
    with Rank(sites[0]) as listening, Rank(sites[1]) as other:
        listening.init()
        other.init()
        yield Scene(listening, other, listening.listen(), lab.hosts[1])


def hello(token: bytes, version: tuple[int, int] = (1, 1), flow: int = 0, flows: int = 1) -> bytes:
    """The first bytes of a connector: magic, versions, token, link, flow, flows, epoch, MTU."""
    numbers = struct.pack("!QHHIH", 0x1234567890ABCDEF, flow, flows, 0, 1500)
    return (b"HARP" + struct.pack("!HH", *version) + token + numbers).ljust(80, b"\0")


def token_of(scene: Scene) -> bytes:
    return scene.handle[28:44]


def test_garbage(scene: Scene) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    texts = [
        draw.randbytes(80),
        draw.randbytes(4000),
        b"GET / HTTP/1.1\r\nHost: 10.77.0.1\r\nUser-Agent: something longer than a hello\r\n\r\n" * 2,
        bytes(80),
        b"HARP" + draw.randbytes(76),
        hello(draw.randbytes(16)),  # a hello without the token
        hello(token_of(scene)[:15] + b"x"),  # with nearly the token
        hello(token_of(scene), flow=1, flows=1),  # with the token, and nonsense behind it
        hello(token_of(scene), flow=0, flows=0),
        hello(token_of(scene), flow=16, flows=65535),
    ]
    for text in texts:
        with scene.stranger() as stranger:
            assert stranger.do("open 1")[0] == 1
            stranger.do(f"send {text.hex()}")
            assert stranger.is_rid_of(1) == b"", f"{text[:8]!r} got an answer"
    assert scene.counted() == len(texts)
    scene.still_serves()


def test_byte_by_byte(scene: Scene) -> None:
    """A wrong hello in small pieces is a wrong hello."""
    with scene.stranger() as stranger:
        stranger.do("open 1")
        for byte in hello(bytes(16)):
            stranger.do(f"send {byte:02x}")
        assert stranger.is_rid_of(1) == b""
    assert scene.counted() == 1
    scene.still_serves()


@pytest.mark.parametrize("scene", [False], ids=["kernel address"], indirect=True)
def test_nothing(scene: Scene) -> None:
    """Their time runs out, whether they say nothing, too little, that they are done, or speak
    another version and do not go."""
    says = ["", f"send {hello(token_of(scene))[:79].hex()}", "finish",
            f"send {hello(token_of(scene), version=(2, 3)).hex()}"]  # fmt: skip
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(scene.stranger()) for _ in says]
        began = time.monotonic()
        for stranger, command in zip(strangers, says):
            assert stranger.do("open 1")[0] == 1
            stranger.do(command)
        scene.still_serves()  # beside them
        for stranger in strangers:
            stranger.is_rid_of(1, STRANGER_S + 2)
        assert time.monotonic() - began > STRANGER_S - 1
    assert scene.counted() == len(says)
    scene.still_serves()


def test_comes_and_goes(scene: Scene) -> None:
    """As port scanners do."""
    with scene.stranger() as stranger:
        for _ in range(5):
            stranger.do("open 20")
            stranger.do("reset")
    scene.still_serves()


def test_more_than_there_is_room_for(scene: Scene) -> None:
    """Silent ones in any number do not keep a peer out."""
    with scene.stranger() as crowd:
        crowd.do("open 300")
        scene.still_serves()
        crowd.is_rid_of(300 - ROOM)
    assert scene.counted() >= 300 - ROOM


def test_another_wire_version(scene: Scene) -> None:
    """With the token: it is told why, and the listener still serves."""
    with scene.stranger() as stranger:
        stranger.do("open 1")
        stranger.do(f"send {hello(token_of(scene), version=(2, 3)).hex()}")

        def answered() -> bytes:
            return stranger.do("state")[2]

        welcome = wait_until(answered, 2, "there was no answer")
        assert len(welcome) == 64 and welcome[:4] == b"harp"
        version, status = struct.unpack("!HH", welcome[4:8])
        assert (version, status) == (0, 93)  # EPROTONOSUPPORT
        scene.still_serves()


def test_the_same_flow_twice(scene: Scene) -> None:
    """The second of two equal hellos is a stranger's; the first keeps its link."""
    with scene.stranger() as first, scene.stranger() as second:
        for stranger in (first, second):
            stranger.do("open 1")
            stranger.do(f"send {hello(token_of(scene), flows=2).hex()}")
        second.is_rid_of(1)
        assert first.do("state")[0] == 1
    assert scene.counted() == 1
    scene.still_serves()


def test_address_that_may_not_connect(lab: Lab, tmp_path: Path) -> None:
    """`peers` names who may: others are refused before they can say anything."""
    sites = [packet_site(tmp_path / str(host.index), host) for host in lab.hosts]
    sites[0].environment["HARP_PEERS"] = "10.77.0.64/26,10.77.1.0/24"
    with Rank(sites[0]) as listening, Rank(sites[1]) as other:
        listening.init()
        other.init()
        scene = Scene(listening, other, listening.listen(), lab.hosts[1])
        with scene.stranger() as stranger:
            stranger.do("open 3")
            stranger.is_rid_of(3)
        (process,) = sites[0].published()
        assert process.totals["tcp_peer_refused"] == 3
