# SPDX-License-Identifier: Apache-2.0
"""The networks with which tools/gpu can join its two ranks.

`namespaces`: two hosts of a lab over the packet port, as in the project's other tests. It needs
root, ip(8), and the right to make namespaces. `interface`: both ranks in this machine's network,
over the packet port of one interface. It needs CAP_NET_RAW, which most containers have. `wire`: the
port in shared memory, which needs no privilege.

This module needs only the standard library.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.hosts.lab import Lab, LabError

NAMES = ("namespaces", "interface", "wire")


class NetError(RuntimeError):
    """This network is not possible here. The message says why."""


@dataclass
class Place:
    """The place of a rank: the prefix of its command line, its folder and configuration, and the
    interface for NCCL's own connections."""

    folder: Path
    interface: str
    configuration: str
    prefix: list[str] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """Writes the configuration. Returns the variables that name it."""
        for name in ("config", "run"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "config" / "ztcp0.conf").write_text(self.configuration)
        return {
            "HARP_CONF_DIR": str(self.folder / "config"),
            "HARP_RUN_DIR": str(self.folder / "run"),
            "NCCL_SOCKET_IFNAME": self.interface,
        }


@dataclass
class Net:
    """Two places that reach each other; `host` is rank 0's address."""

    name: str
    host: str
    places: list[Place]


@contextmanager
def _namespaces(folder: Path) -> Iterator[Net]:
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise NetError("namespaces: this needs root and ip(8) of iproute2")
    with ExitStack() as stack:
        try:
            lab = stack.enter_context(Lab(hosts=2, wire="veth-1500"))
        except (LabError, OSError, subprocess.SubprocessError) as error:
            raise NetError(f"namespaces: {error}") from None
        text = f"device = packet:{lab.hosts[0].interface}\n"
        places = [
            Place(folder / str(host.index), host.interface, text, host.command([]))
            for host in lab.hosts
        ]
        yield Net("namespaces", lab.hosts[0].address, places)


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("256s", interface.encode())
        answer = fcntl.ioctl(asking.fileno(), 0x8915, request)  # SIOCGIFADDR
    return socket.inet_ntoa(answer[20:24])


def _ethernet() -> tuple[str, str]:
    """The first Ethernet interface that is up and has an IPv4 address, and the address."""
    for _, name in socket.if_nameindex():
        folder = Path("/sys/class/net") / name
        try:
            kind = (folder / "type").read_text().strip()
            flags = int((folder / "flags").read_text(), 16)
            if kind == "1" and flags & 1:
                return name, _address_of(name)
        except OSError:
            continue
    raise NetError("interface: no Ethernet interface is up and has an IPv4 address")


@contextmanager
def _interface(folder: Path) -> Iterator[Net]:
    interface, address = _ethernet()
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    except PermissionError:
        raise NetError("interface: packet sockets need CAP_NET_RAW") from None
    text = f"device = packet:{interface}\n"
    places = [Place(folder / str(rank), interface, text) for rank in range(2)]
    yield Net("interface", address, places)


@contextmanager
def _wire(folder: Path) -> Iterator[Net]:
    path = Path(f"/dev/shm/harp-gpu-{secrets.token_hex(4)}")
    try:
        yield Net(
            "wire",
            "127.0.0.1",
            [
                Place(
                    folder / str(rank),
                    "lo",
                    f"device = wire:{path}\naddress = 10.9.0.{rank + 1}/24\n",
                )
                for rank in range(2)
            ],
        )
    finally:
        for left in path.parent.glob(path.name + "*"):
            left.unlink()


_MAKERS = {"namespaces": _namespaces, "interface": _interface, "wire": _wire}


@contextmanager
def join(names: Sequence[str], folder: Path, refusals: list[str]) -> Iterator[Net]:
    """The first of these networks that is possible. Adds the reasons against the others to
    `refusals`. Raises NetError if none is possible."""
    with ExitStack() as stack:
        for name in names:
            try:
                net = stack.enter_context(_MAKERS[name](folder))
            except NetError as error:
                refusals.append(str(error))
            else:
                break
        else:
            raise NetError("; ".join(refusals))
        yield net
