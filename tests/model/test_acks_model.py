# SPDX-License-Identifier: Apache-2.0
"""Links share acknowledgements, and no send waits for one. In virtual time, from the story of a
program."""

from __future__ import annotations

import re

import links_model

FAST = "flows=1 tso=1 delay=10"  # the delay in us; a chunk has at most 3000 bytes
SLOW = "flows=1 delay=10 rate=1000 chunk=14000"  # Mbit/s; a segment arrives every 12 us
BEGIN_MS = 1.0
WAIT_MS = 0.5  # the longest wait for a shared acknowledgement
PROBE_MS, RTO_MS = 2.0, 5.0


def story(path: str, *steps: str) -> str:
    told = links_model.story("; ".join((path, "open 0 0", f"time {1000 * BEGIN_MS:.0f}", *steps)))
    assert re.search("^ok ", told, re.MULTILINE), told
    return told


def frames_per_message(path: str, size: int, pause_us: int) -> float:
    """The frames of a message, if 33 of them are sent one by one."""

    def frames(messages: int) -> int:
        told = story(path, *["recv 0 1", f"send 0 {size}", f"time {pause_us}"] * messages)
        (count,) = re.findall(r"^ok (\d+)", told, re.MULTILINE)
        return int(count)

    return (frames(33) - frames(1)) / 32


def last_ms(event: str, told: str) -> float:
    return float(re.findall(rf"([\d.]+) ms .* is {event}", told)[-1]) - BEGIN_MS


def test_short_messages_share_acknowledgements() -> None:
    assert frames_per_message(FAST, 100, 200) < 1.5


def test_segments_of_a_chunk_share_acknowledgements() -> None:
    """A message of 20000 bytes has two chunks, and 15 segments."""
    assert frames_per_message(SLOW, 20000, 2000) < 18


def test_end_of_a_chunk_is_acknowledged_at_once() -> None:
    told = story(SLOW, *["recv 0 1", "send 0 20000", "time 2000"] * 5)  # the window has grown then
    assert last_ms("sent", told) < last_ms("received", told) + WAIT_MS / 2


def test_message_without_copy_is_acknowledged_at_once() -> None:
    """Its segments fill the first congestion window."""
    told = story(f"{FAST} chunk=60000", "recv 0 1", "send 0 33000", "time 2000")
    assert last_ms("received", told) < WAIT_MS


def test_full_window_does_not_wait_for_shared_acknowledgement() -> None:
    sends = ["recv 0 1"] * 16 + ["send 0 2900"] * 16
    assert last_ms("received", story(FAST, *sends, "time 9000")) < WAIT_MS


def test_timeout_waits_for_one_shared_acknowledgement() -> None:
    """The window is one segment then. The receiver notices that the sender waits."""
    shares = ("recv 0 1", "send 0 20000", "time 2000") * 6  # until the window is large enough
    told = story(SLOW, *shares, "recv 0 1", "silence 0 0 4000", "send 0 20000", "time 20000")
    lost_ms = 6 * 2.0
    assert last_ms("received", told) < lost_ms + PROBE_MS + RTO_MS + 2 * WAIT_MS


def test_new_connection_does_not_wait_for_shared_acknowledgements() -> None:
    """Its window is small, so bytes that shared acknowledgements before would fill it."""
    shares = ("recv 0 1", "send 0 60000", "time 1000") * 6  # until the window is large enough
    lost = ("recv 0 12", "blackhole 0 0 3", *["send 0 2900"] * 12, "time 4000000")
    told = story(FAST, *shares, *lost)
    (began,) = re.findall(r"([\d.]+) ms .* got a new connection", told)
    assert last_ms("received", told) + BEGIN_MS < float(began) + WAIT_MS
