# SPDX-License-Identifier: Apache-2.0
"""Links share the acknowledgements of copied messages, and no send waits for one. In virtual time,
from the story of a program. A chunk has at most 3000 bytes there."""

from __future__ import annotations

import re

import links_model

PATH = "flows=1 tso=1 delay=10"  # the delay in us
BEGIN_MS = 1.0
WAIT_MS = 0.5  # the longest wait for a shared acknowledgement


def story(*steps: str) -> str:
    told = links_model.story("; ".join((PATH, "open 0 0", f"time {1000 * BEGIN_MS:.0f}", *steps)))
    assert re.search("^ok ", told, re.MULTILINE), told
    return told


def frames(messages: int) -> int:
    """The frames of a program with so many short messages, one by one."""
    told = story(*["recv 0 1", "send 0 100", "time 200"] * messages)
    (count,) = re.findall(r"^ok (\d+)", told, re.MULTILINE)
    return int(count)


def last_received_ms(told: str) -> float:
    return float(re.findall(r"([\d.]+) ms .* is received", told)[-1]) - BEGIN_MS


def test_short_messages_share_acknowledgements() -> None:
    assert frames(33) - frames(1) < 1.5 * 32


def test_message_without_copy_is_acknowledged_at_once() -> None:
    """Its segments fill the first congestion window."""
    assert last_received_ms(story("recv 0 1", "send 0 33000", "time 2000")) < WAIT_MS


def test_full_window_does_not_wait_for_shared_acknowledgement() -> None:
    sends = ["recv 0 1"] * 16 + ["send 0 2900"] * 16
    assert last_received_ms(story(*sends, "time 9000")) < WAIT_MS
