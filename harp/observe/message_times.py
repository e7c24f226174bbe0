# SPDX-License-Identifier: Apache-2.0
"""Histograms of message times: from the post of a message (isend, irecv) to its completion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

BUCKETS = 24  # HARP_STAT_TIMES
OPERATIONS = {"S": "send", "R": "receive"}  # by a flow's direction


def bound_s(bucket: int) -> float:
    """The time in seconds below which a bucket's messages lie; that of the last is infinite."""
    return math.inf if bucket == BUCKETS - 1 else 2 ** (10 + bucket) / 1e9


def percentile_s(counts: Sequence[int], percent: int) -> Optional[float]:
    """The time below which so many percent of the messages lie, in seconds, by the buckets' bounds;
    None without messages, infinite in the last bucket."""
    total, below = sum(counts), 0
    for bucket, count in enumerate(counts):
        below += count
        if total and below * 100 >= total * percent:
            return bound_s(bucket)
    return None


def in_ms(seconds: Optional[float]) -> str:
    """A percentile in milliseconds, or a dash. Of an infinite one, only the last bound is known."""
    if seconds is None:
        return "-"
    if seconds == math.inf:
        return f">{in_ms(bound_s(BUCKETS - 2))}"
    return f"{seconds * 1000:.3g}" if seconds < 1 else f"{seconds * 1000:.0f}"


def for_json(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with null for an infinite percentile, which JSON cannot express. So null means no
    message, or more than the last bound."""
    return {name: None if value == math.inf else value for name, value in fields.items()}
