# SPDX-License-Identifier: Apache-2.0
"""Reads this host's interfaces, addresses and routes from the kernel. Changes nothing."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from harp.capabilities import NUMBERS, effective
from harp.setup import sysfs

_ETHERNET = "1"  # ARPHRD_ETHER
_IP_S = 30.0  # seconds for ip(8), which may wait for the kernel's RTNL lock


class HostError(RuntimeError):
    """The kernel refused, or a tool is missing. The text says what to do."""


def ip(*args: str) -> str:
    """Runs ip(8) and returns its standard output. Raises HostError with its standard error."""
    command = ["ip", *args]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_IP_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise HostError(
            "the command ip is missing; install iproute2 (Debian, Ubuntu) or iproute (CentOS)"
        ) from None
    except subprocess.TimeoutExpired:
        raise HostError(
            f"{' '.join(command)} did not end within {_IP_S:.0f} s; try again when the host is "
            "less busy"
        ) from None
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
        """One line of text."""
        parts = [
            self.driver or "virtual",
            f"mtu {self.mtu}",
            ", ".join(self.addresses) or "no IPv4 address",
        ]
        if not self.up:
            parts.append("down")
        elif not self.carrier:
            parts.append("no carrier")
        return f"{self.name}: {'; '.join(parts)}"


def net() -> Path:
    """The sysfs folder of the interfaces."""
    return sysfs.at("sys/class/net")


def addresses(name: str) -> list[str]:
    """The interface's IPv4 addresses with their prefixes."""
    listed = ip("-o", "-4", "addr", "show", "dev", name)
    return re.findall(r"\binet (\d+\.\d+\.\d+\.\d+(?:/\d+)?)", listed)


def with_address(address: str) -> set[str]:
    """The interfaces with this IPv4 or IPv6 address (no prefix)."""
    lines = (line.split() for line in ip("-o", "addr", "show").splitlines())
    return {words[1] for words in lines if words[3].partition("/")[0] == address}


def interface(name: str) -> Optional[Interface]:
    """The interface of that name; None if there is none in this network namespace."""
    folder = net() / name
    if "/" in name or not name or not folder.is_dir():
        return None
    try:
        listed = addresses(name)
    except HostError:
        if folder.is_dir():
            raise
        return None  # it went meanwhile, as those of containers do
    return Interface(
        name=name,
        ethernet=sysfs.text(folder / "type") == _ETHERNET,
        up=int(sysfs.text(folder / "flags") or "0", 16) & 1 != 0,
        carrier=sysfs.text(folder / "carrier") == "1",
        mtu=int(sysfs.text(folder / "mtu") or "0"),
        mac=sysfs.text(folder / "address"),
        driver=sysfs.link(folder / "device" / "driver"),
        bridge=(folder / "bridge").is_dir(),
        addresses=listed,
    )


def interfaces() -> list[Interface]:
    """All interfaces of this network namespace, sorted by name."""
    found = (interface(name) for name in sysfs.names(net()))
    return [one for one in found if one]


def macs() -> set[str]:
    """The hardware addresses of all interfaces of this network namespace."""
    return {sysfs.text(net() / name / "address") for name in sysfs.names(net())}


def vlans(name: str) -> list[str]:
    """The VLAN interfaces on an interface."""
    uppers = [child.partition("_")[2] for child in sysfs.names(net() / name) if "upper_" in child]
    return [one for one in uppers if "DEVTYPE=vlan" in sysfs.text(net() / one / "uevent")]


def candidates() -> list[Interface]:
    """The interfaces that HARP can share with the kernel without any change."""
    return [
        one for one in interfaces() if one.ethernet and one.up and not one.bridge and one.addresses
    ]


def usable() -> str:
    """The names of candidates(), for the line of an error."""
    return ", ".join(one.name for one in candidates()) or "none"


def is_chosen(name: str, pattern: str) -> bool:
    """Whether NCCL_SOCKET_IFNAME selects the interface. The pattern is a list of name prefixes; a
    leading "=" makes them whole names, a leading "^" excludes them."""
    but = pattern.startswith("^")
    listed = pattern.lstrip("^")
    whole = listed.startswith("=")
    parts = [part for part in listed.lstrip("=").split(",") if part]
    return any(name == part if whole else name.startswith(part) for part in parts) != but


def is_local(address: str) -> bool:
    """Whether the address (no prefix) is one of the kernel's."""
    try:
        return ip("route", "get", address).split()[0] in ("local", "broadcast", "multicast")
    except HostError:
        return False  # no route, or a blackhole: it is not local


def forwards(name: str) -> bool:
    """Whether the kernel forwards IPv4 packets that arrive on the interface."""
    return sysfs.text(sysfs.at("proc/sys/net/ipv4/conf") / name / "forwarding") == "1"


def has_blackhole(address: str) -> bool:
    """Whether a blackhole route for exactly this address (no prefix) exists."""
    return bool(ip("route", "show", "type", "blackhole", f"{address}/32").strip())


def may_open_packet_sockets() -> bool:
    """Whether this process has CAP_NET_RAW. Tries to open a packet socket."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except PermissionError:
        return False
    return True


def has_capability(name: str) -> bool:
    """Whether this process has a capability of NUMBERS in force."""
    held = effective(sysfs.text(sysfs.at("proc/self/status")))
    return bool(held >> NUMBERS[name] & 1)


def missing(names: Sequence[str]) -> list[str]:
    """The names without an interface in this network namespace."""
    return [name for name in names if interface(name) is None]
