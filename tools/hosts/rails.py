# SPDX-License-Identifier: Apache-2.0
"""Hosts with several NICs: more interfaces for the two hosts of a lab.

NIC i of each host is the interface `nic<i>`. It is one end of a veth pair to the other host's NIC
of the same index (a rail), with a subnet of its own. Or all NICs are ports of one bridge, in one
subnet.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence

from tools.hosts.lab import Host, Lab, _ip
from tools.hosts.ranks import Site

SYSCTLS = {
    # Each interface answers ARP for its own address only, and asks with it.
    "net.ipv4.conf.all.arp_ignore": 1,
    "net.ipv4.conf.all.arp_announce": 2,
    "net.ipv4.conf.all.rp_filter": 0,
    "net.ipv4.conf.default.rp_filter": 0,
}


@dataclass(frozen=True)
class Rails:
    """The NICs of a lab's hosts; `count`: of each host. `one_subnet`: all of them have addresses in
    one subnet and are ports of one bridge, so each NIC reaches every NIC of the other host. False:
    NIC i reaches NIC i of the other host only, in a subnet of their own."""

    lab: Lab
    count: int
    one_subnet: bool

    def address(self, host: Host, nic: int) -> str:
        """The address of a host's NIC, without prefix."""
        if self.one_subnet:
            return f"10.78.0.{host.index * 100 + nic + 1}"
        return f"10.78.{nic + 1}.{host.index + 1}"

    def set_link(self, host: Host, nic: int, up: bool) -> None:
        """Sets a NIC down or up, as its administrator does."""
        _ip("-n", host.namespace, "link", "set", f"nic{nic}", "up" if up else "down")

    def bytes_in(self, host: Host, nic: int) -> int:
        """The bytes that the interface has received."""
        return int(host.read(f"/sys/class/net/nic{nic}/statistics/rx_bytes"))

    def shape(self, rate: str) -> None:
        """Holds every NIC to a rate of tc(8), such as "1gbit"."""
        for host in self.lab.hosts:
            for nic in range(self.count):
                host.run(
                    ["tc", "qdisc", "replace", "dev", f"nic{nic}", "root", "tbf", "rate", rate,
                     "burst", "256kb", "limit", "2mb"]
                )  # fmt: skip

    def site(self, folder: Path, host: Host, nics: Sequence[int] = (), **keys: object) -> Site:
        """A site with a file for each NIC, all shared with the kernel; nics: only these. NICs have
        one instance each, as packet_site has."""
        site = Site(folder, host.command([]), address=self.address(host, 0))
        for nic in nics or range(self.count):
            device = f"packet:nic{nic}"
            lines: Dict[str, object] = {
                "device": device,
                "address": "kernel",
                "instances": 1,
                **keys,
            }
            text = "".join(f"{key} = {value}\n" for key, value in lines.items())
            site.configure(text, f"ztcp{nic}.conf")
        return site


def add_rails(
    lab: Lab, count: int, one_subnet: bool = False, linux_defaults: bool = False
) -> Rails:
    """Adds `count` NICs to both hosts of a lab. `one_subnet`: all of them share one subnet and one
    bridge; see Rails. `linux_defaults`: the hosts keep Linux's ARP settings, so each NIC answers
    for all addresses of its host. Raises LabError."""
    rails = Rails(lab, count, one_subnet)
    mtu = lab.wire.mtu
    first, second = lab.hosts
    if one_subnet:
        _ip("-n", first.namespace, "link", "add", "rails", "type", "bridge", "stp_state", 0)
        _ip("-n", first.namespace, "link", "set", "rails", "up")
        # The bridge is the switch. It must not answer ARP for the addresses of its host.
        first.write("/proc/sys/net/ipv4/conf/rails/arp_ignore", "8")
    for host in lab.hosts:
        values = dict.fromkeys(SYSCTLS, 0) if linux_defaults else SYSCTLS
        host.run(["sysctl", "-qw", *[f"{name}={value}" for name, value in values.items()]])
    for nic in range(count):
        pairs: List[tuple[Host, str]] = []
        if one_subnet:
            for host in lab.hosts:
                port = f"rail{host.index}-{nic}"
                _ip("link", "add", f"nic{nic}", "mtu", mtu, "netns", host.namespace, "type",
                    "veth", "peer", "name", port, "mtu", mtu, "netns", first.namespace)  # fmt: skip
                _ip("-n", first.namespace, "link", "set", port, "master", "rails", "up")
                pairs.append((host, f"nic{nic}"))
        else:
            _ip("link", "add", f"nic{nic}", "mtu", mtu, "netns", first.namespace, "type", "veth",
                "peer", "name", f"nic{nic}", "mtu", mtu, "netns", second.namespace)  # fmt: skip
            pairs = [(first, f"nic{nic}"), (second, f"nic{nic}")]
        for host, name in pairs:
            _ip("-n", host.namespace, "address", "add", f"{rails.address(host, nic)}/24", "dev",
                name)  # fmt: skip
            _ip("-n", host.namespace, "link", "set", name, "up")
    return rails
