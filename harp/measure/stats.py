# SPDX-License-Identifier: Apache-2.0
"""Medians and spreads. Noise here is one-sided and heavy-tailed: no means."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Sequence


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
