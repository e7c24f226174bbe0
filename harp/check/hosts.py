# SPDX-License-Identifier: Apache-2.0
"""The hosts of a job: which ranks run on each, and how reports name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from harp.check.facts import Facts


@dataclass(frozen=True)
class Host:
    """`ranks` are those on this host, in order; the first one speaks for it. `facts` are that
    rank's."""

    number: int
    name: str
    ranks: tuple[int, ...]
    facts: Facts

    @property
    def nics(self) -> list[dict[str, Any]]:
        """Its NICs; see facts."""
        nics: list[dict[str, Any]] = self.facts["nics"]
        return nics


def _label(facts: Facts) -> str:
    addresses = [nic["address"] for nic in facts["nics"] if nic["address"]]
    return f"{facts['host']} ({addresses[0]})" if addresses else str(facts["host"])


def group(facts: Sequence[Optional[Facts]]) -> list[Host]:
    """The hosts, in the order of their first ranks. facts: of each rank; None: it is lost. Hosts
    that would have the same name get a number."""
    ranks: dict[str, list[int]] = {}
    for rank, one in enumerate(facts):
        if one:
            ranks.setdefault(one["host_id"], []).append(rank)
    found: list[Host] = []
    used: dict[str, int] = {}
    for number, mine in enumerate(ranks.values()):
        one = facts[mine[0]]
        assert one
        name = _label(one)
        used[name] = used.get(name, 0) + 1
        if used[name] > 1:
            name = f"{name} #{used[name]}"
        found.append(Host(number, name, tuple(mine), one))
    return found


def of_ranks(hosts: Iterable[Host], ranks: int) -> list[int]:
    """The number of the host of each rank; -1 for ranks that are lost."""
    numbers = [-1] * ranks
    for one in hosts:
        for rank in one.ranks:
            numbers[rank] = one.number
    return numbers


def names(hosts: Iterable[Host]) -> str:
    """The hosts' names in a sentence."""
    listed = [one.name for one in hosts]
    if len(listed) > 1:
        return f"{', '.join(listed[:-1])} and {listed[-1]}"
    return "".join(listed)


def ranks_of(host: Host) -> str:
    """ "rank 3", or "ranks 2, 3"."""
    return f"rank{'s' if len(host.ranks) > 1 else ''} {', '.join(map(str, host.ranks))}"
