# SPDX-License-Identifier: Apache-2.0
"""Medians and ranges. The noise is one-sided and heavy-tailed, so means would mislead."""

from __future__ import annotations

import math
from bisect import bisect
from dataclasses import dataclass
from statistics import median
from typing import Iterable, Sequence, Tuple


@dataclass(frozen=True)
class Summary:
    """The median, the smallest and the largest of some figures."""

    median: float
    low: float
    high: float
    count: int

    def text(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def summarize(figures: Sequence[float]) -> Summary:
    """The summary of the figures. Raises ValueError if there are none."""
    if not figures:
        raise ValueError("no figures to summarize")
    return Summary(median(figures), min(figures), max(figures), len(figures))


def largest(figures: Iterable[float]) -> float:
    """The largest of some differences; infinity if one of them is not finite. max() drops a NaN
    that is not the first one. Raises ValueError if there are none."""
    return max(one if math.isfinite(one) else math.inf for one in figures)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Summary:
    """The ratios of ours to theirs, pair by pair: a slow minute affects both and cancels out.

    Raises ValueError if the lengths differ.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} figures against {len(theirs)} make no pairs")
    return summarize([a / b for a, b in zip(ours, theirs)])


def increase(timeline: Sequence[Tuple[float, float]], begin: float, end: float) -> float:
    """The increase of a count between two times, by linear interpolation of its samples.

    timeline: ascending times, each with the count. Outside of it the count is constant. Raises
    ValueError if it is empty.
    """
    if not timeline:
        raise ValueError("the timeline has no samples")

    def at(moment: float) -> float:
        after = bisect([one[0] for one in timeline], moment)
        if after in (0, len(timeline)):
            return timeline[min(after, len(timeline) - 1)][1]
        (t0, low), (t1, high) = timeline[after - 1 : after + 1]
        return low + (high - low) * (moment - t0) / (t1 - t0)

    return at(end) - at(begin)
