# SPDX-License-Identifier: Apache-2.0
"""Finds the hosts that explain bad links."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

Link = tuple[int, int]  # from a host to a host


@dataclass
class Blame:
    """`hosts`: the bad links of each host that explains them. `links`: bad links that no host
    explains."""

    hosts: dict[int, list[Link]] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)


def _most(links: Collection[Link], hosts: Collection[int]) -> int:
    return max(hosts, key=lambda host: (sum(host in link for link in links), -host))


def direction(host: int, links: Collection[Link]) -> str:
    """Whether the links lead to the host ("to"), from it ("from") or both ("with")."""
    leave = {source == host for source, _ in links}
    return "with" if len(leave) > 1 else ("from" if True in leave else "to")


def find(bad: Collection[Link], hosts: Collection[int]) -> Blame:
    """Blames a host if links with more than half of the other hosts, and with at least two, are
    bad. The host with the most bad links comes first, and explains its links."""
    left = sorted(set(bad))
    found = Blame()
    while left:
        host = _most(left, hosts)
        mine = [link for link in left if host in link]
        peers = {end for link in mine for end in link} - {host}
        if len(peers) < 2 or 2 * len(peers) <= len(hosts) - 1:
            break
        found.hosts[host] = mine
        left = [link for link in left if host not in link]
    found.links = left
    return found
