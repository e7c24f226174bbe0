# SPDX-License-Identifier: Apache-2.0
"""A receiver takes whole bursts from its port also after a loss, when no place of the payload is
known. One frame for each poll would mean one acknowledgement for each frame."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from ranks import Rank, connect, packet_site, wait_until

from tools.hosts.lab import Lab

MIB = 1 << 20
SIZE = 512 << 10  # a message that is in flight as a whole, about 360 frames
LEAST_FRAMES = 300
LIMIT_MS = 60000


def count(rank: Rank, *counters: str) -> list[int]:
    (process,) = rank.site.published()
    return [process.totals[counter] for counter in counters]


def window(rank: Rank) -> int:
    """The congestion window of the rank's sending flow, bytes."""
    (process,) = rank.site.published()
    return max((flow.cwnd for flow in process.flows if flow.direction == "S"), default=0)


def test_bursts_stay_long_after_loss(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab = make_lab(wire="veth-1500-nooff")
    losses = tmp_path / "losses"
    losses.touch()
    sites = [
        packet_site(tmp_path / "0", lab.hosts[0], faults=f"control={losses}"),
        packet_site(tmp_path / "1", lab.hosts[1], threads="caller"),
    ]
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        link = connect(one.init(), other.init())

        def has_long_window() -> bool:
            link.move(16, MIB, LIMIT_MS)
            return window(one) > 2 * SIZE

        wait_until(has_long_window, 60, "the congestion window stays short", [one])
        # The rank calls test only once its receive is posted.
        (before,) = count(other, "polls_by_caller")
        other.start("receive", link.receives, 1, SIZE, LIMIT_MS)
        wait_until(lambda: count(other, "polls_by_caller")[0] > before, 20, "no test", [other])
        other.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, other.process.pid, os.WSTOPPED | os.WNOWAIT)
        (sent,) = count(one, "tx_frames")
        losses.write_text("drop=0.1,side=tx")
        one.start("send", link.sends, 1, SIZE, LIMIT_MS)
        wait_until(
            lambda: count(one, "tx_frames")[0] > sent + LEAST_FRAMES, 20, "nothing is sent", [one]
        )
        losses.write_text("")
        frames, polls, idle = count(other, "rx_frames", "polls", "polls_idle")
        other.signal(signal.SIGCONT)
        link.finish(60)

        def polls_for_frames() -> float:
            now = count(other, "rx_frames", "polls", "polls_idle")
            got = now[0] - frames
            return (now[1] - polls - now[2] + idle) / got if got > LEAST_FRAMES / 2 else 0

        assert wait_until(polls_for_frames, 20, "no frame arrives", [other]) < 0.5
