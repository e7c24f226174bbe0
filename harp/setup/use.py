# SPDX-License-Identifier: Apache-2.0
"""What an interface is used for: what would break if its NIC were given away. Reads only."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from harp.setup import host, sysfs
from harp.setup.netstate import FAMILIES, Settings

_TIME_WAIT = 6


def _dev(line: str) -> str:
    found = re.search(r"\bdev (\S+)", line)
    return found.group(1) if found else ""


def _metric(line: str) -> int:
    found = re.search(r"\bmetric (\d+)", line)
    return int(found.group(1)) if found else 0


def default_interfaces() -> set[str]:
    """Those that carry the best default route: of IPv4, or else of IPv6."""
    for family in FAMILIES:
        # A route of several next hops goes over several lines; the first has its metric.
        found: dict[int, set[str]] = {}
        metric = 0
        for line in host.ip(family, "route", "show", "default").splitlines():
            metric = metric if line.startswith((" ", "\t")) else _metric(line)
            if _dev(line):
                found.setdefault(metric, set()).add(_dev(line))
        if found:
            return found[min(found)]
    return set()


# -- the session in which set-up runs


def _parent(pid: int) -> int:
    # The program's name may hold anything, also spaces and brackets.
    status = sysfs.text(sysfs.at(f"proc/{pid}/stat")).rpartition(")")[2].split()
    return int(status[1]) if len(status) > 1 else 0


def _session() -> tuple[str, str]:
    """The client's and this host's address of the ssh session; "" without one.
    sudo forgets the variable, so our parents are asked, too."""
    pid = os.getpid()
    for _ in range(64):
        for word in sysfs.text(sysfs.at(f"proc/{pid}/environ")).split("\0"):
            name, _, value = word.partition("=")
            if name == "SSH_CONNECTION" and len(value.split()) == 4:
                return value.split()[0], value.split()[2]
        pid = _parent(pid)
        if pid <= 1:
            break
    return "", ""


def session_interfaces() -> set[str]:
    """Those over which the ssh session of this process runs: where its address is,
    and where its client is routed."""
    client, here = _session()
    if not client:
        return set()
    found = {
        one.name
        for one in host.interfaces()
        if here in (address.partition("/")[0] for address in one.addresses)
    }
    try:
        found.add(_dev(host.ip("route", "get", client)))
    except host.HostError:
        pass  # its address says enough
    return found - {""}


def never(name: str) -> str:
    """Why the interface may not be given away at all; "" if it may."""
    if name in default_interfaces():
        return "it carries the default route"
    if name in session_interfaces():
        return "it carries the ssh session that you work in"
    return ""


# -- what would miss it


def _serves_others(route: str) -> bool:
    # An on-link gateway, and a default route that is not the host's (a table of its
    # own, or a worse metric), are how an address further on is told its way.
    words = route.split()
    return words[1] != "default" and "via" in words


def _hex_address(text: str) -> str:
    """An address of /proc/net/tcp (words in the machine's order), v4-mapped as v4."""
    raw = bytes.fromhex(text)
    words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    if len(words) == 4:
        return socket.inet_ntop(socket.AF_INET, words)
    if words.startswith(bytes(10) + b"\xff\xff"):
        return socket.inet_ntop(socket.AF_INET, words[12:])
    return socket.inet_ntop(socket.AF_INET6, words)


def _sockets(addresses: set[str]) -> dict[str, int]:
    """How many sockets of each protocol have one of the addresses as their own."""
    found = {}
    for protocol in ("tcp", "udp"):
        count = 0
        for table in (protocol, protocol + "6"):
            for line in sysfs.text(sysfs.at(f"proc/net/{table}")).splitlines()[1:]:
                words = line.split()
                if (
                    int(words[3], 16) != _TIME_WAIT
                    and _hex_address(words[1].partition(":")[0]) in addresses
                ):
                    count += 1
        found[protocol.upper()] = count
    return found


def _packet_sockets(folder: Path) -> int:
    """How many packet sockets are bound to the interface: a DHCP client, a capture,
    HARP itself."""
    index = sysfs.text(folder / "ifindex")
    lines = sysfs.text(sysfs.at("proc/net/packet")).splitlines()[1:]
    return sum(line.split()[4] == index for line in lines)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def uses(settings: Settings) -> list[str]:
    """What an interface is in use for. An address that nobody talks over is none: it
    goes to HARP with its NIC."""
    folder = sysfs.at("sys/class/net") / settings.name
    master = sysfs.link(folder / "master")
    found = [f"it is a member of {master}"] if master else []
    for child in sysfs.names(folder):
        if child.startswith("upper_") and child != f"upper_{master}":
            found.append(f"{child.partition('_')[2]} runs over it")
    if sysfs.number(folder / "device" / "sriov_numvfs"):
        found.append("it has virtual functions")
    if len(settings.ipv4) > 1:
        found.append(f"it has {len(settings.ipv4)} IPv4 addresses, and HARP takes one")
    found += [f"the route {route[3:]}" for route in settings.routes if _serves_others(route)]
    for protocol, count in _sockets({one.partition("/")[0] for one in settings.ipv4}).items():
        if count:
            found.append(f"{_counted(count, f'{protocol} socket')} on its address")
    captures = _packet_sockets(folder)
    if captures:
        found.append(_counted(captures, "packet socket"))
    return found
