# SPDX-License-Identifier: Apache-2.0
"""Medians and spreads. Noise here is one-sided and heavy-tailed: no means."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from statistics import median
from typing import Sequence, Tuple


@dataclass(frozen=True)
class Summary:
    """The middle of some figures, and the smallest and largest of them."""

    median: float
    low: float
    high: float
    count: int

    def text(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def summarize(figures: Sequence[float]) -> Summary:
    """ValueError if there are none."""
    if not figures:
        raise ValueError("no figures to summarize")
    return Summary(median(figures), min(figures), max(figures), len(figures))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Summary:
    """Ours over theirs, pair by pair: what a slow minute does to both goes out.

    ValueError if the pairs are not whole.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} figures against {len(theirs)} make no pairs")
    return summarize([a / b for a, b in zip(ours, theirs)])


def between(timeline: Sequence[Tuple[float, float]], begin: float, end: float) -> float:
    """By how much a count grew from one moment to another; straight between its samples.

    timeline: moments, ascending, with the count at each; before the first and behind the last
    nothing happens. ValueError if it is empty.
    """
    if not timeline:
        raise ValueError("no samples to look between")

    def at(moment: float) -> float:
        after = bisect([one[0] for one in timeline], moment)
        if after in (0, len(timeline)):
            return timeline[min(after, len(timeline) - 1)][1]
        (t0, low), (t1, high) = timeline[after - 1 : after + 1]
        return low + (high - low) * (moment - t0) / (t1 - t0)

    return at(end) - at(begin)
