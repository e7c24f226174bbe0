# SPDX-License-Identifier: Apache-2.0
"""Unauthenticated peers: sockets of the other host's kernel that connect to a listening rank."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ranks import Rank, Site, connect, packet_site, wait_until

from tools.hosts.lab import Host, Lab

# Obeys lines of its input: "open N" makes N connections; "send HEX", "reset" and "finish" (end of
# data) apply to all of them; "state" prints how many the other side has closed, and its bytes.
SCRIPT = """
import select, socket, struct, sys
address, port = sys.argv[1], int(sys.argv[2])
held, ended, received = [], 0, b""
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
                received += data
                if not data:
                    raise ConnectionResetError
        except OSError:
            held.remove(one)
            ended += 1
    print(len(held), ended, received.hex() or "-", flush=True)
"""


class UnauthenticatedPeer:
    """Connections of an unauthenticated peer to a listener, over a host's kernel."""

    def __init__(self, host: Host, address: str, port: int) -> None:
        args = [sys.executable, "-c", SCRIPT, address, str(port)]
        self.process = host.popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def do(self, command: str) -> tuple[int, int, bytes]:
        """Runs a command. Returns the number of open connections, the number closed by the other
        side, and the received bytes."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        held, ended, received = self.process.stdout.readline().split()
        return int(held), int(ended), b"" if received == "-" else bytes.fromhex(received)

    def wait_for_closes(self, count: int, timeout: float = 4) -> bytes:
        """Waits until the other side has closed `count` connections. Returns the received bytes.
        The default timeout is less than the five seconds after which HARP closes silent ones."""

        def ended() -> bool:
            return self.do("state")[1] >= count

        wait_until(ended, timeout, f"{count} connections were not rejected")
        return self.do("state")[2]


@dataclass
class Scene:
    """A listening rank, a rank that connects to it, and the host of the unauthenticated peers."""

    listening: Rank
    other: Rank
    listener: tuple[int, str]
    host: Host

    @property
    def handle(self) -> bytes:
        return bytes.fromhex(self.listener[1])

    @contextmanager
    def unauthenticated_peer(self, handle: Optional[bytes] = None) -> Iterator[UnauthenticatedPeer]:
        """An unauthenticated peer of a handle's listener; None: of the scene's."""
        (port,) = struct.unpack("!H", (handle or self.handle)[8:10])
        made = UnauthenticatedPeer(self.host, self.listening.site.address, port)
        try:
            yield made
        finally:
            made.process.kill()
            made.process.wait(20)

    def counted(self, name: str = "unauthenticated_drops") -> int:
        """A counter, from harp stat."""
        args = [sys.executable, "-m", "harp", "stat", "--json", "--pid"]
        said = subprocess.run(
            [*args, str(self.listening.process.pid)],
            capture_output=True, text=True, timeout=20, check=True,
            env=self.listening.site.all_environment(),
        )  # fmt: skip
        (process,) = json.loads(said.stdout)["processes"]
        return int(process["totals"][name])

    def still_serves(self, warnings: int = 0) -> None:
        connect(self.other, self.listening, self.listener).move()
        assert len(self.listening.warnings) == warnings
        assert self.other.warnings == []


def hello(
    token: bytes,
    version: tuple[int, int] = (1, 1),
    flow: int = 0,
    flows: int = 1,
    checked: bool = False,
    epoch: int = 0,
) -> bytes:
    """A hello: magic, versions, token, link, flow, flows, epoch, MTU, flags. checked: the chunks
    have checksums of header and payload (wire version 2 and later)."""
    numbers = struct.pack("!QHHIHB", 0x1234567890ABCDEF, flow, flows, epoch, 1500, checked)
    return (b"HARP" + struct.pack("!HH", *version) + token + numbers).ljust(80, b"\0")


def token_of(scene: Scene) -> bytes:
    return scene.handle[28:44]


def sites_of(lab: Lab, folder: Path, own_address: bool = False, **keys: object) -> list[Site]:
    """HARP on the interface of each host. The folder gets one folder for each host."""
    return [packet_site(folder / str(host.index), host, own_address, **keys) for host in lab.hosts]


@contextmanager
def scene_on(lab: Lab, sites: list[Site]) -> Iterator[Scene]:
    """A rank that listens on the first site, and a rank on the second one."""
    with Rank(sites[0]) as listening, Rank(sites[1]) as other:
        listening.init()
        other.init()
        yield Scene(listening, other, listening.listen(), lab.hosts[1])
