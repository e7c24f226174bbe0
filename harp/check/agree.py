# SPDX-License-Identifier: Apache-2.0
"""Compares the hosts' facts. NCCL ends a job that only some of its hosts can run over HARP, so this
is found before the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

from harp.check import facts as facts_of
from harp.check.hosts import Host, names, ranks_of
from harp.cli.findings import Finding, fault, note

Said = Callable[[Host], str]
_HALF = "NCCL ends a job with HARP on some of its hosts only"


def _minority(groups: Sequence[list[Host]]) -> Optional[list[list[Host]]]:
    """The groups but the largest; None if no group is the largest."""
    ordered = sorted(groups, key=len, reverse=True)
    if len(ordered[0]) == len(ordered[1]):
        return None
    return ordered[1:]


def _differ(
    hosts: Sequence[Host],
    value: Callable[[Host], Any],
    said: Said,
    about: str,
    remedy: str,
    make: Callable[[str, str], Finding] = fault,
) -> Iterator[Finding]:
    """A finding for each group of hosts with another value than most. It names all groups if no
    value is that of most hosts. said: describes a host's value."""
    groups: dict[str, list[Host]] = {}
    for one in hosts:
        groups.setdefault(repr(value(one)), []).append(one)
    if len(groups) < 2:
        return
    odd = _minority(list(groups.values()))
    if odd is None:
        each = "; ".join(f"{names(group)}: {said(group[0])}" for group in groups.values())
        yield make(about, f"the hosts differ ({each}); {remedy}")
        return
    usual = next(group for group in groups.values() if group not in odd)
    for group in odd:
        yield make(
            about,
            f"{names(group)}: {said(group[0])}, and {said(usual[0])} on the other hosts; {remedy}",
        )


# -- doctor


def _where(hosts: Sequence[Host], ranks: list[int]) -> str:
    """The hosts of these ranks; the ranks, too, if only some of a host's are among them."""
    mine = [one for one in hosts if set(one.ranks) & set(ranks)]
    if sum(len(one.ranks) for one in mine) > len(ranks):
        return f"{names(mine)}, rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    return names(mine) if len(mine) < len(hosts) or len(hosts) == 1 else "all hosts"


def _doctor(hosts: Sequence[Host], all_facts: Sequence[Any]) -> Iterator[Finding]:
    """What doctor found: each sentence once, for all the ranks that it is about."""
    seen: dict[tuple[str, str, str], list[int]] = {}
    for one in hosts:
        for rank in one.ranks:
            for found in all_facts[rank]["doctor"]:
                key = (found["level"], found["about"], found["text"])
                seen.setdefault(key, []).append(rank)
    for (level, about, text), ranks in seen.items():
        yield Finding(level, about, f"{_where(hosts, ranks)}: {text}")


# -- HARP itself

_STATES = {
    facts_of.ENABLED: "NCCL finds HARP",
    facts_of.HIDDEN: "HARP is disabled",
    facts_of.ABSENT: "NCCL finds no plugin",
    facts_of.OTHER: "NCCL finds another vendor's plugin",
    facts_of.OFF: "HARP_DISABLE is set, so HARP declines",
}


def _remedy(one: Host) -> str:
    path = one.facts["plugin"]
    return {
        facts_of.HIDDEN: f"run there: harp enable {path}",
        facts_of.ABSENT: "start the job with harprun, or install the plugin there",
        facts_of.OTHER: f"start the job with harprun, or remove {path} there",
        facts_of.OFF: "unset HARP_DISABLE there, or set it on all hosts",
    }[one.facts["state"]]


def _enabled(hosts: Sequence[Host]) -> Iterator[Finding]:
    """Names the hosts on which NCCL does not find HARP, if it finds HARP on others. harprun makes
    NCCL find HARP on a host without a plugin, so an absent plugin is a fault only beside hosts on
    which NCCL finds HARP."""
    without = [one for one in hosts if one.facts["state"] != facts_of.ENABLED]
    states = {one.facts["state"] for one in hosts}
    if len(states) == 1:  # doctor has said it
        return
    if facts_of.ENABLED not in states:
        without = [one for one in without if one.facts["state"] != facts_of.ABSENT]
    for one in without:
        yield fault(
            "HARP", f"{one.name}: {_STATES[one.facts['state']]}, and {_HALF}; {_remedy(one)}"
        )


def _within(one: Host, all_facts: Sequence[Any]) -> Iterator[Finding]:
    """Compares the ranks of a host: NCCL needs the same devices for all of them."""
    for name, said in (("devices", "devices"), ("state", "plugins"), ("checksum", "HARP_CHECKSUM")):
        values = {repr(all_facts[rank][name]) for rank in one.ranks}
        if len(values) > 1:
            yield fault(
                "ranks",
                f"{one.name}: {ranks_of(one)} see different {said}; give them the same files and "
                "the same variables (harp doctor, while a job runs)",
            )


def _speeds(one: Host) -> list[int]:
    return [device["speed_mbps"] for device in one.facts["devices"]]


def _mtus(one: Host) -> list[int]:
    return [nic["mtu"] for nic in one.nics]


def _raise_mtu(hosts: Sequence[Host]) -> str:
    """How to give all NICs the largest MTU."""
    largest = max((mtu for one in hosts for mtu in _mtus(one)), default=0)
    small = [(one, nic) for one in hosts for nic in one.nics if nic["mtu"] < largest]
    by_key = [nic for _, nic in small if nic["mtu_key"]]
    if not small or not largest:
        return "set the same MTU on all hosts"
    nic = small[0][1]
    name = nic["interface"] or nic["device"]
    if by_key:
        return f"correct mtu in {by_key[0]['file']} there"
    return f"run there: ip link set {name} mtu {largest}, if the switch allows it"


def _key(one: Host) -> str:
    return f"a key in {one.facts['key_file']}" if one.facts["key"] else "no HARP_KEY_FILE"


def _another_key(hosts: Sequence[Host]) -> Iterator[Finding]:
    with_key = [one for one in hosts if one.facts["key"] not in ("", "?")]
    lacks = len({bool(one.facts["key"]) for one in hosts}) > 1
    if len({one.facts["key"] for one in with_key}) > 1 and not lacks:
        said: Said = lambda one: f"key {one.facts['key'][:8]} in {one.facts['key_file']}"  # noqa: E731
    else:
        said = _key
    yield from _differ(
        hosts,
        lambda one: one.facts["key"],
        said,
        "key",
        "HARP_KEY_FILE must name the same key on all hosts: copy the file of one host to the "
        "others (scp -p)",
    )


def compare(hosts: Sequence[Host], all_facts: Sequence[Any]) -> list[Finding]:
    """All that the hosts must agree on before a plugin runs. all_facts: those of each rank."""
    found: list[Finding] = []
    found += _doctor(hosts, all_facts)
    for one in hosts:
        found += _within(one, all_facts)
    found += _enabled(hosts)
    found += _differ(
        hosts,
        lambda one: one.facts["release"],
        lambda one: f"release {one.facts['release']}",
        "release",
        "install one release on all hosts",
        note,
    )
    configured = [one for one in hosts if one.facts["devices"]]
    found += _differ(
        configured,
        lambda one: len(one.facts["devices"]),
        lambda one: f"{len(one.facts['devices'])} devices",
        "devices",
        "give all hosts a ztcp*.conf for each rail (harp setup nics; harp env --devices)",
    )
    if len({len(one.facts["devices"]) for one in configured}) == 1:
        found += _differ(
            configured,
            _speeds,
            lambda one: f"{', '.join(map(str, _speeds(one)))} Mbit/s",
            "devices",
            "see the cable, the port of the switch and ethtool there, or set speed_mbps",
        )
        found += _differ(
            configured,
            _mtus,
            lambda one: f"MTU {', '.join(map(str, _mtus(one)))}",
            "MTU",
            _raise_mtu(configured),
        )
    found += _another_key(hosts)
    found += _differ(
        hosts,
        lambda one: one.facts["checksum"],
        lambda one: "HARP_CHECKSUM=1" if one.facts["checksum"] else "no HARP_CHECKSUM",
        "checksum",
        "set HARP_CHECKSUM=1 on all hosts, or on none",
    )
    return found


# -- after the plugin's init


def wire(hosts: Sequence[Host], versions: Sequence[Optional[Sequence[int]]]) -> Iterator[Finding]:
    """Compares the wire versions. versions: lowest and highest of each rank; None: unknown."""
    known = [one for one in hosts if versions[one.ranks[0]]]

    def of(one: Host) -> Sequence[int]:
        return versions[one.ranks[0]] or ()

    low = max((of(one)[0] for one in known), default=0)
    high = min((of(one)[1] for one in known), default=0)
    works = "they do not understand each other" if low > high else "they work together"
    yield from _differ(
        known,
        of,
        lambda one: f"wire versions {of(one)[0]} to {of(one)[1]}",
        "wire version",
        f"{works}; install one release on all hosts",
    )


def declined(hosts: Sequence[Host], why: Sequence[Optional[str]]) -> Iterator[Finding]:
    """Names the ranks whose plugin has declined. why: its words; "": it has not declined."""
    so = "so do all others, which leaves NCCL its sockets" if all(why) else _HALF
    for one in hosts:
        texts: dict[str, list[int]] = {}
        for rank in one.ranks:
            if why[rank]:
                texts.setdefault(str(why[rank]), []).append(rank)
        if one.facts["state"] == facts_of.OFF and not all(why):  # _enabled has said it
            continue
        for text, ranks in texts.items():
            listed = ", ".join(map(str, ranks))
            yield fault("HARP", f"{one.name}: declines on rank {listed}, and {so}: {text}")
