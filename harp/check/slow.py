# SPDX-License-Identifier: Apache-2.0
"""Finds slow hosts and links among the measured pairs of ranks.

A link is slow if it has less than a part of the rate that a good link of this job has. Noise only
makes a link slower, so the best of several measurements counts, and a suspect is measured again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from harp.check import blame
from harp.check.hosts import Host
from harp.cli.findings import Finding, fault, note

SUSPECT, SLOW = 0.5, 1 / 3  # parts of a good link's rate
AGAIN = 3  # measurements of a suspect
FAR = 5  # a round trip of so many times the usual one, and at least FAR_US more, is far
FAR_US = 500.0

Rates = Mapping[tuple[int, int], float]  # from a rank to a rank, Gbit/s, or µs for round trips


def _between(rates: Rates, host_of: Sequence[int]) -> dict[tuple[int, int], list[float]]:
    """The values of each link between different hosts."""
    found: dict[tuple[int, int], list[float]] = {}
    for (source, target), value in rates.items():
        link = (host_of[source], host_of[target])
        if link[0] != link[1]:
            found.setdefault(link, []).append(value)
    return found


def good(rates: Rates, host_of: Sequence[int]) -> float:
    """The rate of a good link between hosts: a quarter of the links are as good or better. 0: there
    are fewer than two pairs of hosts to compare."""
    links = _between(rates, host_of)
    if len({frozenset(link) for link in links}) < 2:
        return 0.0
    best = sorted(max(values) for values in links.values())
    return best[(3 * len(best)) // 4]


def suspects(rates: Rates, host_of: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of ranks to measure again, lower rank first."""
    bound = SUSPECT * good(rates, host_of)
    return sorted(
        {
            (min(pair), max(pair))
            for pair, rate in rates.items()
            if rate < bound and host_of[pair[0]] != host_of[pair[1]]
        }
    )


def judge(hosts: Sequence[Host], rates: Rates, host_of: Sequence[int]) -> Iterator[Finding]:
    """Names slow hosts and links by the best rates."""
    usual = good(rates, host_of)
    links = {link: statistics.median(v) for link, v in _between(rates, host_of).items()}
    bad = [link for link, rate in links.items() if rate < SLOW * usual]
    blamed = blame.find(bad, [one.number for one in hosts])
    look = "see the speed of its port (ethtool), its cable, its CPUs' load, and limits of the cloud"
    for host, mine in blamed.hosts.items():
        rate = statistics.median(links[link] for link in mine)
        way = blame.direction(host, mine)
        yield fault(
            "slow host",
            f"{hosts[host].name}: {rate:.3g} Gbit/s on links {way} it, and {usual:.3g} on others; "
            f"{look}",
        )
    for source, target in blamed.links:
        yield fault(
            "slow link",
            f"from {hosts[source].name} to {hosts[target].name}: {links[source, target]:.3g} "
            f"Gbit/s, and {usual:.3g} on others; see the switches and cables between them, and "
            "tcp_retransmits in harp stat",
        )


def far(hosts: Sequence[Host], trips_us: Rates, host_of: Sequence[int]) -> Iterator[Finding]:
    """Names pairs of hosts with a much longer round trip than usual. It is a note: hosts may be in
    several racks."""
    best = {link: min(values) for link, values in _between(trips_us, host_of).items()}
    if len(best) < 3:
        return
    usual = statistics.median(best.values())
    distant = [link for link, us in best.items() if us > FAR * usual and us > usual + FAR_US]
    blamed = blame.find(distant, [one.number for one in hosts])
    for host, mine in blamed.hosts.items():
        us = statistics.median(best[link] for link in mine)
        yield note(
            "round trip",
            f"{hosts[host].name}: {us:.0f} µs to the others, and {usual:.0f} µs usually; see its "
            "CPUs' load, and the way to it",
        )
    for source, target in blamed.links:
        yield note(
            "round trip",
            f"{hosts[source].name} and {hosts[target].name}: {best[source, target]:.0f} µs, and "
            f"{usual:.0f} µs usually; see the way between them",
        )
