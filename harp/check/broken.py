# SPDX-License-Identifier: Apache-2.0
"""Links of the plugin that do not open or stall, and ranks that are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from harp.check import blame
from harp.check.hosts import Host
from harp.check.links import AWAITED
from harp.cli.findings import Finding, fault

# What the plugin says of a reset to its first segment (plugin/link/link_connect.c). The peer does
# listen during a check, so something on the way has answered.
_RESET = "no process listens on the peer's port"

_KINDS = {
    "swallowed": (
        "HARP's TCP {who} is swallowed without an answer: a firewall drops it",
        "allow TCP to all of HARP's ports (tcp_ports) between the hosts: see security groups, the "
        "switches and nft list ruleset",
    ),
    "reset": (
        "HARP's TCP {who} is reset: a firewall rejects it, or the key peers there excludes it",
        "see nft list ruleset and iptables -S there, and peers in its ztcp*.conf",
    ),
    "stalled": (
        "HARP's links {who} stall",
        "compare the MTUs on the way; see the counters tcp_retransmits and flows_replaced",
    ),
    "refused": ("HARP's links {who} do not open", "the plugin's words name the remedy"),
}  # fmt: skip


def _kind(why: str) -> str:
    for kind in ("swallowed", "stalled"):
        if why.startswith(kind):
            return kind
    if why.startswith(AWAITED):
        return "swallowed"
    return "reset" if _RESET in why else "refused"


def links(hosts: Sequence[Host], why: Mapping[tuple[int, int], str]) -> list[Finding]:
    """Names the hosts or pairs whose links fail. why: by the links, the plugin's words or a text
    that begins with "swallowed" or "stalled"."""
    kinds: dict[str, list[tuple[int, int]]] = {}
    for link, text in why.items():
        kinds.setdefault(_kind(text), []).append(link)
    found = []
    everyone: Collection[int] = [one.number for one in hosts]
    for kind, bad in kinds.items():
        says, remedy = _KINDS[kind]
        blamed = blame.find(bad, everyone)
        named = [
            (f"{blame.direction(host, mine)} {hosts[host].name}", mine[0])
            for host, mine in blamed.hosts.items()
        ]
        named += [
            (f"from {hosts[one].name} to {hosts[other].name}", (one, other))
            for one, other in blamed.links
        ]
        for who, link in named:
            found.append(fault("link", f"{says.format(who=who)}; {remedy} ({why[link]})"))
    return found


def missing(
    lost: Mapping[int, str], ranks: int, where: str, host_of: Sequence[int], hosts: Sequence[Host]
) -> Iterator[Finding]:
    """Names the ranks that did not come or went away. lost: why, by rank."""
    reasons: dict[str, list[int]] = {}
    for rank, why in lost.items():
        known = host_of[rank] if rank < len(host_of) else -1
        at = f" on {hosts[known].name}" if known >= 0 else ""
        reasons.setdefault(f"{at} {why}", []).append(rank)
    for text, missed in reasons.items():
        listed = ", ".join(map(str, sorted(missed)))
        some = f"rank{'s' if len(missed) > 1 else ''} {listed} of {ranks}"
        yield fault(
            "ranks",
            f"{some}{text}; see their own messages, whether the launcher has started them, and "
            f"whether their hosts reach {where} by TCP",
        )
