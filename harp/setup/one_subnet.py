# SPDX-License-Identifier: Apache-2.0
"""Several interfaces of this host in one IPv4 subnet.

Linux answers ARP for all of its addresses on each interface by default (ARP flux). Frames for the
address of one interface then arrive at another one. A packet device at the kernel's address accepts
them there; an xdp device does not see them. The sysctls arp_ignore and arp_announce keep the
kernel's ARP on each interface to that interface's address.

A strict rp_filter then keeps all but one of the interfaces from answering at all: the route to the
subnet leads out of one of them, and the kernel drops requests that arrive on another.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from harp.setup import host, sysfs
from harp.setup.interface_value import InterfaceValue
from harp.setup.steps import Step, StepError

# Answer ARP only for the interface's own address, and ask with that address.
WANTED = {"arp_ignore": 1, "arp_announce": 2}

REMEDY = "sysctl -w " + " ".join(f"net.ipv4.conf.all.{key}={WANTED[key]}" for key in WANTED)

# Accept packets from an address that any route leads to (RFC 3704, loose reverse path forwarding).
LOOSE = 2

_CONF = "proc/sys/net/ipv4/conf"


@dataclass(frozen=True)
class Group:
    """Interfaces in one subnet; `subnet` is the largest of theirs."""

    subnet: ipaddress.IPv4Network
    names: list[str]

    @property
    def listed(self) -> str:
        return f"{', '.join(self.names[:-1])} and {self.names[-1]}"


def groups(names: Iterable[str]) -> list[Group]:
    """The groups of two or more of these interfaces. The address that HARP shares, which is the
    first one, tells an interface's subnet."""
    found: list[Group] = []
    nets = []
    for name in dict.fromkeys(names):
        device = host.interface(name)
        if device and device.addresses:
            nets.append((ipaddress.IPv4Interface(device.addresses[0]).network, name))
    for net, name in sorted(nets, key=lambda one: one[0].prefixlen):  # the largest subnets first
        group = next((one for one in found if net.subnet_of(one.subnet)), None)
        if group is None:
            found.append(Group(net, [name]))
        else:
            group.names.append(name)
    return [group for group in found if len(group.names) > 1]


def concerned(names: Sequence[str]) -> set[str]:
    """Those of these interfaces that may need the steps: all that are in a group, and all of
    several if one has no address now, for example during boot."""
    found = [host.interface(name) for name in names]
    if len(names) > 1 and not all(one and one.addresses for one in found):
        return set(names)
    return {name for group in groups(names) for name in group.names}


def effective(interface: str, key: str) -> int:
    """The value in force of a sysctl in net.ipv4.conf: that of the interface or that for all,
    whichever is larger."""
    return max(sysfs.number(sysfs.at(_CONF) / which / key) for which in ("all", interface))


def dropped_by_rp_filter(interface: str) -> bool:
    """Whether the kernel drops packets of the interface's subnet that arrive on the interface,
    because the route back leads out of another one. Routes by source address avoid that."""
    address = ipaddress.IPv4Interface(host.addresses(interface)[0])
    peers = (str(peer) for peer in address.network.hosts() if peer != address.ip)
    peer = next((peer for peer in peers if not host.is_local(peer)), "")
    if not peer or effective(interface, "rp_filter") != 1:
        return False
    try:
        host.ip("route", "get", str(address.ip), "from", peer, "iif", interface)
    except host.HostError:  # EINVAL or EXDEV: the source address fails rp_filter
        return True
    return False


@dataclass
class InterfaceSysctl(InterfaceValue):
    """Sets net.ipv4.conf.INTERFACE.KEY to at least `value`."""

    kind: ClassVar[str] = "sysctl"

    @property
    def target(self) -> str:
        return f"net.ipv4.conf.{self.interface.replace('.', '/')}.{self.key}"  # as in sysctl(8)

    def now(self) -> int:
        """-1 if the interface does not have it."""
        return sysfs.number(sysfs.at(_CONF) / self.interface / self.key, -1)

    def make(self, value: int) -> None:
        (sysfs.at(_CONF) / self.interface / self.key).write_text(str(value))

    def describe(self) -> str:
        return (
            f"sysctl -w {self.target}={self.value} "
            "(several NICs are in one subnet; each must answer ARP, for its own address only)"
        )

    def in_place(self) -> bool:
        return self.now() >= 0 and effective(self.interface, self.key) >= self.value

    def do(self) -> None:
        try:
            self.make(self.value)
        except OSError as failure:
            raise StepError(
                f"{failure}; a container may not change it: run {REMEDY} on its host"
            ) from failure


def steps(names: Iterable[str]) -> list[Step]:
    """The steps that these interfaces need, those in place left out."""
    found: list[Step] = []
    for name in (name for group in groups(names) for name in group.names):
        loose = {"rp_filter": LOOSE} if dropped_by_rp_filter(name) else {}
        for key, value in {**WANTED, **loose}.items():
            if effective(name, key) < value:
                own = sysfs.number(sysfs.at(_CONF) / name / key)
                found.append(InterfaceSysctl(name, key, value, own, sysfs.boot()))
    return found
