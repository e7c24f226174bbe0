# SPDX-License-Identifier: Apache-2.0
"""Finds slow hosts and links among the measured pairs of ranks.

A link is slow if it has less than a part of the rate that a good link of this job has. Noise only
makes a link slower, so the best of several measurements counts. A suspect is measured again, beside
good links: what these reach then is what a good link reaches under this load.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harp.check import blame
from harp.check.hosts import Host
from harp.cli.findings import Finding, fault, note

SUSPECT, SLOW = 0.5, 0.3  # parts of a good link's rate
AGAIN = 8  # more measurements of a suspect
AGAIN_S = 10.0  # no further one begins after that time
ROUND_S = 5.0  # for one of them, all suspects together
BESIDE = 4  # most good pairs that are measured with the suspects
FAR = 5  # a round trip of so many times the usual one, and at least FAR_US more, is far
FAR_US = 500.0

Rates = Mapping[tuple[int, int], float]  # from a rank to a rank, Gbit/s, or µs for round trips


@dataclass(frozen=True)
class Place:
    """Where a rank is: its host, by number, and its device there."""

    host: int
    device: int


Lane = tuple[Place, Place]  # from a NIC to a NIC: all pairs of ranks there share it


def lanes(rates: Rates, places: Sequence[Place]) -> dict[Lane, float]:
    """The best rate of each lane between different hosts."""
    found: dict[Lane, float] = {}
    for (source, target), rate in rates.items():
        lane = (places[source], places[target])
        if lane[0].host != lane[1].host:
            found[lane] = max(rate, found.get(lane, 0.0))
    return found


def good(best: Mapping[Lane, float], beside: Sequence[float]) -> float:
    """The rate of a good lane: a quarter of the lanes are as good or better, or the usual rate of
    the good pairs that were measured beside suspects, if that is less. 0: there are fewer than two
    pairs of hosts to compare."""
    if len({frozenset((source.host, target.host)) for source, target in best}) < 2:
        return 0.0
    ordered = sorted(best.values())
    quarter = ordered[(3 * len(ordered)) // 4]
    return min(quarter, statistics.median(beside)) if beside else quarter


def suspects(
    rates: Rates, places: Sequence[Place], beside: Sequence[float]
) -> list[tuple[int, int]]:
    """The pairs of ranks to measure again, lower rank first: the best one of each slow lane, so
    that a slow host with many ranks takes little time."""
    best = lanes(rates, places)
    bound = SUSPECT * good(best, beside)
    return sorted(
        {
            (min(pair), max(pair))
            for pair, rate in rates.items()
            if rate < bound and best.get((places[pair[0]], places[pair[1]])) == rate
        }
    )


def references(rates: Rates, places: Sequence[Place], count: int) -> list[tuple[int, int]]:
    """The pairs of ranks of the best lanes, lower rank first: count of them, at most BESIDE."""
    across = [pair for pair in rates if places[pair[0]].host != places[pair[1]].host]
    ordered = sorted(across, key=lambda pair: rates[pair], reverse=True)
    found = dict.fromkeys((min(pair), max(pair)) for pair in ordered)
    return list(found)[: min(count, BESIDE)]


def judge(
    hosts: Sequence[Host], rates: Rates, places: Sequence[Place], beside: Sequence[float]
) -> Iterator[Finding]:
    """Names slow hosts and links by the best rates. beside: what good pairs reached when suspects
    were measured again."""
    best = lanes(rates, places)
    usual = good(best, beside)
    others = f"{usual:.3g} on {'good ones measured beside them' if beside else 'others'}"
    bad = _slowest(best, 0.0, SLOW * usual)
    blamed = blame.find(bad, [one.number for one in hosts])
    for host, mine in blamed.hosts.items():
        rate = statistics.median(bad[link] for link in mine)
        way = blame.direction(host, mine)
        yield fault(
            "slow host",
            f"{hosts[host].name}: {rate:.3g} Gbit/s on links {way} it, and {others}; "
            "see the speed of its port (ethtool), its cable, its CPUs' load, and limits of the "
            "cloud",
        )
    for one, other in blamed.links:
        yield fault(
            "slow link",
            f"from {hosts[one].name} to {hosts[other].name}: {bad[one, other]:.3g} Gbit/s, and "
            f"{others}; see the switches and cables between them, and "
            "tcp_retransmits in harp stat",
        )
    if beside:  # the suspects were measured again, and are below half of a good rate still
        yield from _doubtful(hosts, _slowest(best, SLOW * usual, SUSPECT * usual), blamed, others)


def _slowest(
    best: Mapping[Lane, float], least: float, below: float
) -> dict[tuple[int, int], float]:
    """The slowest lane of each link from a host to a host, if it has such a rate."""
    found: dict[tuple[int, int], float] = {}
    for (source, target), rate in best.items():
        link = (source.host, target.host)
        if rate < below:
            found[link] = min(rate, found.get(link, rate))
    return {link: rate for link, rate in found.items() if rate >= least}


def _doubtful(
    hosts: Sequence[Host],
    rates: Mapping[tuple[int, int], float],
    known: blame.Blame,
    others: str,
) -> Iterator[Finding]:
    """Notes the links that are too good for a fault. Faults name the `known` hosts already."""
    left = {link: rate for link, rate in rates.items() if not known.hosts.keys() & set(link)}
    blamed = blame.find(left, [one.number for one in hosts])
    for host, mine in blamed.hosts.items():
        rate = statistics.median(left[link] for link in mine)
        yield note(
            "slower host",
            f"{hosts[host].name}: {rate:.3g} Gbit/s on links {blame.direction(host, mine)} it, and "
            f"{others}; see its CPUs' load, and its CPU quota (nr_throttled in its cgroup's "
            "cpu.stat)",
        )
    for one, other in blamed.links:
        yield note(
            "slower link",
            f"from {hosts[one].name} to {hosts[other].name}: {left[one, other]:.3g} Gbit/s, and "
            f"{others}",
        )


def far(hosts: Sequence[Host], trips_us: Rates, places: Sequence[Place]) -> Iterator[Finding]:
    """Names pairs of hosts with a much longer round trip than usual. It is a note: hosts may be in
    several racks."""
    best: dict[tuple[int, int], float] = {}
    for (one, other), us in trips_us.items():
        link = (places[one].host, places[other].host)
        if link[0] != link[1]:
            best[link] = min(us, best.get(link, us))
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
