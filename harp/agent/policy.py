# SPDX-License-Identifier: Apache-2.0
"""Who may ask the agent, and for what."""

from __future__ import annotations

import grp
import ipaddress
import pwd
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harp.agent.request import Device


class Denied(PermissionError):
    """A request that the policy forbids. The text names the user, the group and the remedy."""


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _groups(uid: int, gid: int) -> set[str]:
    """The names and numbers of a process's group, and of all groups of its user on this host."""
    found = {gid}
    try:
        record = pwd.getpwuid(uid)
        found.add(record.pw_gid)
        found.update(g.gr_gid for g in grp.getgrall() if record.pw_name in g.gr_mem)
    except KeyError:
        pass
    return {str(number) for number in found} | {_group(number) for number in found}


@dataclass(frozen=True)
class Policy:
    """What the operator allows.

    allow: users (name or number) and groups (@name or @number). Root may always ask.
    devices: interfaces; empty: all.
    addresses: networks in which a job may have an address of its own; empty: none.
    quota: ports that the processes of one user may have open at a time.
    """

    allow: Sequence[str] = ()
    devices: Sequence[str] = ()
    addresses: Sequence[ipaddress.IPv4Network] = field(default_factory=list)
    quota: int = 64

    def permits(self, uid: int, gid: int) -> bool:
        """Whether a process of this user and group may ask."""
        if uid == 0 or {str(uid), _user(uid)} & set(self.allow):
            return True
        names = {f"@{name}" for name in _groups(uid, gid)}
        return bool(names & set(self.allow))

    def check_client(self, uid: int, gid: int) -> None:
        """Raises Denied for a user that may not ask."""
        if self.permits(uid, gid):
            return
        allowed = ", ".join(self.allow) or "root only"
        raise Denied(
            f"the agent does not serve user {_user(uid)} (uid {uid}), group {_group(gid)} (gid "
            f"{gid}); it serves: {allowed}; start harp agent with --allow {_user(uid)} or --allow "
            f"@{_group(gid)}"
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
        """Raises Denied if a user already has all the ports that it may have."""
        if used >= self.quota:
            raise Denied(
                f"user {_user(uid)} has {used} devices open, which is its quota; end a job, or "
                f"start harp agent with --quota {2 * self.quota}"
            )


def _inside(address: str, networks: Iterable[ipaddress.IPv4Network]) -> bool:
    return any(ipaddress.IPv4Address(address) in network for network in networks)
