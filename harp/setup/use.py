# SPDX-License-Identifier: Apache-2.0
"""Finds the uses of an interface: they would break if HARP took its NIC. Changes nothing."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from harp.setup import host, sysfs
from harp.setup.netstate import FAMILIES, Settings

_TIME_WAIT = 6
_IPV6_DEFAULT = "it carries the IPv6 default route"


def _dev(line: str) -> str:
    found = re.search(r"\bdev (\S+)", line)
    return found.group(1) if found else ""


def _metric(line: str) -> int:
    found = re.search(r"\bmetric (\d+)", line)
    return int(found.group(1)) if found else 0


def _best_default(family: str) -> set[str]:
    """The interfaces of the family's best default route."""
    # A multipath route takes several lines; only the first has the metric.
    found: dict[int, set[str]] = {}
    metric = 0
    for line in host.ip(family, "route", "show", "default").splitlines():
        metric = metric if line.startswith((" ", "\t")) else _metric(line)
        if _dev(line):
            found.setdefault(metric, set()).add(_dev(line))
    return found[min(found)] if found else set()


def default_interfaces() -> set[str]:
    """The interfaces of the best default route: of IPv4, or else of IPv6."""
    return next(filter(None, map(_best_default, FAMILIES)), set())


# -- the ssh session of this process


def _parent(pid: int) -> int:
    # The second field, the program's name, may contain spaces and brackets.
    status = sysfs.text(sysfs.at(f"proc/{pid}/stat")).rpartition(")")[2].split()
    return int(status[1]) if len(status) > 1 else 0


def _session() -> tuple[str, str]:
    """The addresses of the ssh session's client and of this host; "" without a session. sudo
    removes SSH_CONNECTION, so the parents' environments are searched, too."""
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
    """The interfaces of this process's ssh session: the one with its local address, and the one
    of the route to its client."""
    client, here = _session()
    if not client:
        return set()
    scope = here.partition("%")[2]
    if scope:  # a link-local address of IPv6 names its interface
        return {scope}
    found = host.with_address(here)
    try:
        found.add(_dev(host.ip("route", "get", client)))
    except host.HostError:
        pass  # the interface of the local address suffices
    return found - {""}


def never(name: str, taken_before: bool = False) -> str:
    """The reason why HARP never takes the interface's NIC; "" if it may. `taken_before`: an earlier
    set-up took the NIC. Router advertisements may give it an IPv6 default route again at boot,
    before the host's other NICs have theirs."""
    ways = _best_default("-4")
    if name in ways:
        return "it carries the default route"
    if not ways and not taken_before and _best_default("-6") == {name}:
        return _IPV6_DEFAULT
    if name in session_interfaces():
        return "it carries the ssh session that you work in"
    return ""


# -- the uses


def _serves_others(route: str) -> bool:
    # Two kinds of routes do not count. An on-link route only makes a gateway reachable. A default
    # route here is not the host's best: it is in another table or has a worse metric.
    fields = route.split()
    return fields[1] != "default" and "via" in fields


def _hex_address(text: str) -> str:
    """An address of /proc/net/tcp, whose words are in host order. IPv4-mapped ones become IPv4."""
    raw = bytes.fromhex(text)
    packed = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    if packed.startswith(bytes(10) + b"\xff\xff"):
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return socket.inet_ntop(socket.AF_INET6, packed)


def _sockets(addresses: set[str]) -> dict[str, int]:
    """The number of sockets of each protocol with one of the addresses as local address."""
    found = {}
    for protocol in ("tcp", "udp"):
        count = 0
        for table in (protocol, protocol + "6"):
            for line in sysfs.text(sysfs.at(f"proc/net/{table}")).splitlines()[1:]:
                fields = line.split()
                if (
                    int(fields[3], 16) != _TIME_WAIT
                    and _hex_address(fields[1].partition(":")[0]) in addresses
                ):
                    count += 1
        found[protocol.upper()] = count
    return found


def _packet_sockets(folder: Path) -> int:
    """The number of packet sockets bound to the interface: DHCP clients, captures, HARP itself."""
    index = sysfs.text(folder / "ifindex")
    lines = sysfs.text(sysfs.at("proc/net/packet")).splitlines()[1:]
    return sum(line.split()[4] == index for line in lines)


def _is_ipv6_way_out(name: str) -> bool:
    """Whether the host may need the interface's IPv6 default route. Router advertisements give one
    to each NIC, and then another NIC's serves as well. On a host without an IPv4 default route,
    each of them counts: --dpdk must not take them all."""
    ways = _best_default("-6")
    return ways == {name} or (name in ways and not _best_default("-4"))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def uses(settings: Settings) -> list[str]:
    """The uses of an interface. An address without sockets is no use: HARP takes it over with the
    NIC."""
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
    if _is_ipv6_way_out(settings.name):
        found.append(_IPV6_DEFAULT)
    found += [f"the route {route[3:]}" for route in settings.routes if _serves_others(route)]
    own = {one.split()[0].partition("/")[0] for one in settings.addresses}
    for protocol, count in _sockets(own).items():
        if count:
            found.append(f"{_counted(count, f'{protocol} socket')} on its address")
    captures = _packet_sockets(folder)
    if captures:
        found.append(_counted(captures, "packet socket"))
    return found
