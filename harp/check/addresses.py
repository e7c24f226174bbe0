# SPDX-License-Identifier: Apache-2.0
"""Addresses that two hosts have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harp.check.hosts import Host, names
from harp.cli.findings import Finding, fault

_REMEDY = "give one of them another address (ip addr del, or address in ztcp*.conf)"


def _by_mac(hosts: Sequence[Host], mac: str) -> str:
    for one in hosts:
        if any(nic["mac"] == mac for nic in one.nics):
            return f"{one.name}, {mac}"
    return f"a host outside this job, {mac}"


def _owners(hosts: Sequence[Host]) -> dict[str, list[Host]]:
    owners: dict[str, list[Host]] = {}
    for one in hosts:
        for address in {nic["address"] for nic in one.nics if nic["address"]}:
            owners.setdefault(address, []).append(one)
    return owners


def doubtful(hosts: Sequence[Host]) -> set[int]:
    """The hosts with an address that another host has, too: frames for one may reach the other."""
    shared = {one.number for having in _owners(hosts).values() if len(having) > 1 for one in having}
    return shared | {one.number for one in hosts for nic in one.nics if nic["conflict"]}


def duplicates(hosts: Sequence[Host]) -> Iterator[Finding]:
    """Finds addresses of two hosts of the job, and those that ARP finds at other hosts."""
    owners = _owners(hosts)
    for address, having in owners.items():
        if len(having) > 1:
            macs = [
                nic["mac"] for one in having for nic in one.nics if nic["address"] == address
            ]  # fmt: skip
            yield fault(
                "address",
                f"{names(having)} have the same address {address} (hardware addresses "
                f"{', '.join(macs)}); {_REMEDY}",
            )
    for one in hosts:
        for nic in one.nics:
            if nic["conflict"] and len(owners[nic["address"]]) == 1:
                yield fault(
                    "address",
                    f"{one.name} and another host have {nic['address']}: ARP finds it at "
                    f"{_by_mac(hosts, nic['conflict'])}; {_REMEDY}",
                )
