# SPDX-License-Identifier: Apache-2.0
"""What the kernel says about this host's interfaces, addresses and routes. Reads only."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

NET = Path("/sys/class/net")
IPV4 = Path("/proc/sys/net/ipv4")

_ETHERNET = "1"  # ARPHRD_ETHER


class HostError(RuntimeError):
    """The kernel refused, or a tool is missing. The text says how to mend it."""


def ip(*words: str) -> str:
    """Runs ip(8); its standard output. Raises HostError with what it said."""
    command = ["ip", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30,
                              env={**os.environ, "LC_ALL": "C"})
    except FileNotFoundError:
        raise HostError("the command ip is missing; install iproute2 (Debian, Ubuntu) or "
                        "iproute (CentOS)") from None
    if done.returncode:
        raise HostError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Interface:
    """`addresses` are IPv4 with their prefixes, "10.0.3.7/24"; `driver` is ""
    for a virtual device; `mtu` in bytes."""

    name: str
    ethernet: bool
    up: bool
    carrier: bool
    mtu: int
    mac: str
    driver: str
    bridge: bool
    addresses: list[str]

    @property
    def describe(self) -> str:
        """One line for people."""
        words = [self.driver or "virtual", f"mtu {self.mtu}",
                 ", ".join(self.addresses) or "no IPv4 address"]
        if not self.up:
            words.append("down")
        elif not self.carrier:
            words.append("no carrier")
        return f"{self.name}: {'; '.join(words)}"


def _attribute(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text().strip()
    except OSError:  # also: carrier of an interface that is down
        return ""


def _addresses(name: str) -> list[str]:
    listed = ip("-o", "-4", "addr", "show", "dev", name)
    return re.findall(r"\binet (\d+\.\d+\.\d+\.\d+(?:/\d+)?)", listed)


def interface(name: str) -> Optional[Interface]:
    """The interface of that name; None if there is none in this network namespace."""
    folder = NET / name
    if "/" in name or not name or not folder.is_dir():
        return None
    driver = folder / "device" / "driver"
    return Interface(
        name=name,
        ethernet=_attribute(folder, "type") == _ETHERNET,
        up=int(_attribute(folder, "flags") or "0", 16) & 1 != 0,
        carrier=_attribute(folder, "carrier") == "1",
        mtu=int(_attribute(folder, "mtu") or "0"),
        mac=_attribute(folder, "address"),
        driver=driver.resolve().name if driver.exists() else "",
        bridge=(folder / "bridge").is_dir(),
        addresses=_addresses(name))


def interfaces() -> list[Interface]:
    """All of this network namespace, by name."""
    try:
        names = sorted(os.listdir(NET))
    except OSError:
        return []
    found = (interface(name) for name in names)
    return [one for one in found if one]


def candidates() -> list[Interface]:
    """Interfaces that HARP could use with the kernel's address as they are."""
    return [one for one in interfaces()
            if one.ethernet and one.up and not one.bridge and one.addresses]


def is_local(address: str) -> bool:
    """Whether the kernel holds the address (no prefix) itself."""
    try:
        return ip("route", "get", address).split()[0] in ("local", "broadcast", "multicast")
    except HostError:
        return False  # no route, or a blackhole: it is not local


def forwards(name: str) -> bool:
    """Whether the kernel passes on frames that arrive on the interface for others."""
    return _attribute(IPV4 / "conf" / name, "forwarding") == "1"


def has_blackhole(address: str) -> bool:
    """Whether a blackhole route for exactly this address (no prefix) exists."""
    return bool(ip("route", "show", "type", "blackhole", f"{address}/32").strip())


def may_open_packet_sockets() -> bool:
    """Whether this process has CAP_NET_RAW here, found by trying."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except PermissionError:
        return False
    return True


def missing(names: Sequence[str]) -> list[str]:
    """Those of the names that are no interface here."""
    return [name for name in names if interface(name) is None]
