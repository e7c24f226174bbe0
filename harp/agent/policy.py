# SPDX-License-Identifier: Apache-2.0
"""Who may ask the agent, and for what."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from harp.agent.accounts import Accounts
from harp.agent.request import Device


class Denied(PermissionError):
    """A request that the policy forbids. The text names the user, the group and the remedy."""


@dataclass
class Policy:
    """What the operator allows. Raises UnknownName for a user that this host does not have.

    allow: users (name or number) and groups (@name or @number). Root may always ask.
    devices: interfaces; empty: all.
    addresses: networks in which a job may have an address of its own; empty: none.
    quota: devices that the processes of one user may have open at a time.
    port_quota: local TCP ports that they may have on one interface at a time.
    """

    allow: Sequence[str] = ()
    devices: Sequence[str] = ()
    addresses: Sequence[ipaddress.IPv4Network] = field(default_factory=list)
    quota: int = 64
    port_quota: int = 4096

    def __post_init__(self) -> None:
        self.accounts = Accounts(self.allow)

    def permits(self, uid: int, gids: Collection[int]) -> bool:
        """Whether a process of this user, with these groups, may ask."""
        return self.accounts.include(uid, gids)

    def check_client(self, uid: int, gids: Sequence[int]) -> None:
        """Raises Denied for a user that may not ask. gids: the process's own group first."""
        if self.permits(uid, gids):
            return
        user, group = self.accounts.user(uid), self.accounts.group(gids[0])
        served = ", ".join(self.allow) or "root only"
        who = f"user {user} (uid {uid}), group {group} (gid {gids[0]})"
        if self.accounts.is_unmapped(uid):
            raise Denied(
                f"the agent does not serve {who}: the kernel shows this number for every user of a "
                f"user namespace without a number on the node; it serves: {served}; run the job as "
                f"a user of its own, or start harp agent with --allow {user} to serve all of these"
            )
        raise Denied(
            f"the agent does not serve {who}; it serves: {served}; start harp agent with --allow "
            f"{user} or --allow @{group}"
        )

    def check_device(self, device: Device) -> None:
        """Raises Denied for an interface that is not for jobs."""
        if self.devices and device.interface not in self.devices:
            raise Denied(
                f"{device}: the agent serves only {', '.join(self.devices)}; start harp agent with "
                f"--device {device.interface}"
            )

    def check_address(self, device: Device, address: str, mac: str) -> None:
        """Raises Denied for an address that a job may not have."""
        if address == "kernel" and mac:
            raise Denied(f"{device}: mac cannot be used with address = kernel")
        if address == "kernel" or _inside(address, self.addresses):
            return
        raise Denied(
            f"{device}: the agent gives no job the address {address}; set address = "
            f"kernel, or start harp agent with --address {address}/32"
        )

    def check_quota(self, uid: int, used: int) -> None:
        """Raises Denied if a user already has all the devices that it may have."""
        if used >= self.quota:
            raise Denied(
                f"user {self.accounts.user(uid)} has {used} devices open, which is its quota; end "
                f"a job, or start harp agent with --quota {2 * self.quota}"
            )

    def check_port_quota(self, device: Device, uid: int, used: int, wanted: int) -> None:
        """Raises Denied if a user would have more local ports than it may have. used: what it has
        on the interface."""
        if used + wanted > self.port_quota:
            raise Denied(
                f"{device}: user {self.accounts.user(uid)} has {used} local ports and would get "
                f"{wanted} more, but its quota is {self.port_quota}; end a job, or start harp "
                f"agent with --port-quota {2 * self.port_quota} or a smaller --block"
            )


def _inside(address: str, networks: Iterable[ipaddress.IPv4Network]) -> bool:
    return any(ipaddress.IPv4Address(address) in network for network in networks)
