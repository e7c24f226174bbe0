# SPDX-License-Identifier: Apache-2.0
"""Schedules of pairs: every pair of ranks once, in rounds of pairs that run at the same time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

Pair = tuple[int, int]
_Key = TypeVar("_Key", bound=Hashable)


def rounds(players: Sequence[int]) -> list[list[Pair]]:
    """A round-robin tournament by the circle method: each player has at most one pair in a round,
    and the rounds are as few as possible."""
    circle = [*players, *([-1] if len(players) % 2 else [])]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]))
        found.append([(min(a, b), max(a, b)) for a, b in pairs if a >= 0 and b >= 0])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def one_by_one(ranks: Sequence[int], host_of: Sequence[_Key]) -> list[list[Pair]]:
    """Slots with all pairs of the ranks. No host is in two pairs of a slot, so each pair has its
    hosts for itself. host_of: the host of each rank."""
    by_host: dict[_Key, list[int]] = {}
    for rank in ranks:
        by_host.setdefault(host_of[rank], []).append(rank)
    hosts = list(by_host.values())
    slots: list[list[Pair]] = []
    for meetings in rounds(range(len(hosts))):
        crossing = [
            [(min(a, b), max(a, b)) for a in hosts[one] for b in hosts[other]]
            for one, other in meetings
        ]
        slots += _columns(crossing)
    slots += _columns([[pair for one in rounds(host) for pair in one] for host in hosts])
    return slots


def _columns(rows: Sequence[Sequence[Pair]]) -> list[list[Pair]]:
    """Slot i has the pair i of each row."""
    longest = max((len(row) for row in rows), default=0)
    return [[row[i] for row in rows if i < len(row)] for i in range(longest)]


def again(pairs: Iterable[Pair], host_of: Sequence[_Key]) -> list[list[Pair]]:
    """Slots with some pairs only, as in one_by_one. Each pair is in the first slot that is free of
    its hosts."""
    slots: list[list[Pair]] = []
    busy: list[set[_Key]] = []
    for pair in pairs:
        hosts = {host_of[rank] for rank in pair}
        free = next((i for i, used in enumerate(busy) if not used & hosts), len(slots))
        if free == len(slots):
            slots.append([])
            busy.append(set())
        slots[free].append(pair)
        busy[free] |= hosts
    return slots
