# SPDX-License-Identifier: Apache-2.0
"""Histograms of message times: from the post of a message (isend, irecv) to its completion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional

BUCKETS = 24  # HARP_STAT_TIMES
OPERATIONS = {"S": "send", "R": "receive"}  # by a flow's direction


def bound_s(bucket: int) -> float:
    """The time in seconds below which a bucket's messages lie; that of the last is infinite."""
    return math.inf if bucket == BUCKETS - 1 else 2 ** (10 + bucket) / 1e9


def percentile_s(counts: Sequence[int], percent: int) -> Optional[float]:
    """The time below which so many percent of the messages lie, in seconds, by the buckets' bounds;
    None without messages. The last bucket has no bound, and counts as the one before it."""
    total, below = sum(counts), 0
    for bucket, count in enumerate(counts):
        below += count
        if total and below * 100 >= total * percent:
            return bound_s(min(bucket, BUCKETS - 2))
    return None


def in_ms(seconds: Optional[float]) -> str:
    """A percentile in milliseconds, or a dash."""
    return "-" if seconds is None else f"{seconds * 1000:.3g}"
