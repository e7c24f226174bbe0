# SPDX-License-Identifier: Apache-2.0
"""Saves and restores the settings that an interface loses when its driver is unbound."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harp.setup import host, sysfs

FAMILIES = ("-4", "-6")
_SET_BY_HAND = 3  # NET_ADDR_SET in addr_assign_type


@dataclass
class Settings:
    """The settings of an interface. `mtu` in bytes; `mac` is "" if it is the NIC's own; `addresses`
    and `routes` are arguments for ip(8); `speed` in Mbit/s, 0 if unknown."""

    name: str
    mtu: int
    mac: str
    up: bool
    addresses: list[str]
    routes: list[str]
    speed: int = 0

    @property
    def ipv4(self) -> list[str]:
        """Its IPv4 addresses with their prefixes."""
        found = (fields.split()[0] for fields in self.addresses)
        return [one if "/" in one else f"{one}/32" for one in found if ":" not in one]


def routes(name: str) -> list[str]:
    """The interface's routes as arguments for ip(8), without those that the kernel makes itself.
    On-link routes come first, because routes with a gateway need them."""
    found = []
    for family in FAMILIES:
        for line in host.ip(family, "route", "show", "table", "all", "dev", name).splitlines():
            fields = [word for word in line.split() if word not in ("linkdown", "dead")]
            if (
                fields
                and not re.search(r"\bproto (kernel|ra)\b", line)
                and fields[0] not in ("local", "broadcast", "multicast", "anycast")
            ):
                found.append(" ".join([family, *fields]))
    return sorted(found, key=lambda line: " via " in line)


def _address_settings(name: str) -> list[str]:
    found = []
    for line in host.ip("-o", "addr", "show", "dev", name).splitlines():
        match = re.search(r"\binet6? (\S+(?: (?:peer|metric|brd) \S+)* scope (\S+))", line)
        # The kernel adds the link-local IPv6 address itself.
        if match and not (match.group(2) == "link" and ":" in match.group(1)):
            found.append(match.group(1))
    return found


def settings(name: str) -> Settings:
    """The interface's settings. Raises HostError if it is gone."""
    folder = sysfs.at("sys/class/net") / name
    by_hand = sysfs.number(folder / "addr_assign_type") == _SET_BY_HAND
    return Settings(
        name=name,
        mtu=sysfs.number(folder / "mtu"),
        mac=sysfs.text(folder / "address") if by_hand else "",
        up=sysfs.number(folder / "flags") & 1 != 0,
        addresses=_address_settings(name),
        routes=routes(name),
        speed=max(0, sysfs.number(folder / "speed")),
    )


def restore(now: str, wanted: Settings) -> None:
    """Restores the settings, and the name, of the interface named `now`. May be repeated. Raises
    HostError."""
    if now != wanted.name:
        host.ip("link", "set", "dev", now, "down")
        host.ip("link", "set", "dev", now, "name", wanted.name)
    link = ["link", "set", "dev", wanted.name, "mtu", str(wanted.mtu)]
    host.ip(*link, *(["address", wanted.mac] if wanted.mac else []))
    for address in wanted.addresses:
        host.ip("addr", "replace", *address.split(), "dev", wanted.name)
    host.ip("link", "set", "dev", wanted.name, "up" if wanted.up else "down")
    for route in wanted.routes:
        family, *fields = route.split()
        host.ip(family, "route", "replace", *fields, "dev", wanted.name)
