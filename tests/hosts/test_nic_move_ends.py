# SPDX-License-Identifier: Apache-2.0
"""A link ends at a random moment while its flows move to another NIC: it is closed, its rank
finalizes or is killed. Nothing hangs, and the other rank still works."""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from ranks import Failed, Link, Rank, connect
from several_nics import COUNT, Pair, all_up, pair, rails

from tools.hosts.rails import Rails

__all__ = ["rails"]

FULL = bool(os.environ.get("HARP_TEST_FULL"))
MOMENTS = 60 if FULL else 2
MOVING_S = 0.6  # a move begins and ends within this time
ENDS = pytest.mark.parametrize("closer", [0, 1], ids=["sender", "receiver"])
KEYS: tuple[dict[str, object], dict[str, object]] = ({"flows": 4}, {"flows": 4})


@pytest.fixture
def draw() -> random.Random:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


def in_a_move(scene: Pair, draw: random.Random, nic: int) -> None:
    """Sets the NIC of one host down and returns at a random moment of the move."""
    scene.set_nic(draw.randrange(2), nic, False)
    time.sleep(draw.random() * MOVING_S)


def close(link: Link, closer: int) -> None:
    """Both sides close, this one first."""
    sides = [(link.sender, link.sends), (link.receiver, link.receives)]
    for rank, comm in sides if closer == 0 else reversed(sides):
        rank.do("close", comm)


@pytest.mark.quick_cases(1)
@ENDS
def test_idle_link_is_closed_in_a_move(
    rails: Rails, tmp_path: Path, draw: random.Random, closer: int
) -> None:
    with pair(rails, tmp_path, keys=KEYS) as scene:
        for moment in range(MOMENTS):
            link = scene.connect(0, moment % COUNT)
            link.move()
            in_a_move(scene, draw, moment % COUNT)
            close(link, closer)
            all_up(rails)
        scene.connect(0, 1).move()
        scene.no_warnings()


@pytest.mark.slow
@pytest.mark.sanitized
def test_short_messages_arrive_if_link_is_closed_in_a_move(
    rails: Rails, tmp_path: Path, draw: random.Random
) -> None:
    """The sends of short messages are done, but their bytes are lost with the NIC."""
    with pair(rails, tmp_path, keys=KEYS) as scene:
        for moment in range(2 * MOMENTS):
            link = scene.connect(0, moment % COUNT)
            link.move()
            link.receiver.start("receive", link.receives, 8, 4096, 20_000)
            scene.set_nic(draw.randrange(2), moment % COUNT, False)
            link.sender.do("send", link.sends, 8, 4096, 5000)
            link.sender.do("close", link.sends)
            link.receiver.finish(20)
            link.receiver.do("close", link.receives)
            all_up(rails)
        scene.no_warnings()


@pytest.mark.slow
@pytest.mark.sanitized
@ENDS
def test_busy_link_is_closed_in_a_move(
    rails: Rails, tmp_path: Path, draw: random.Random, closer: int
) -> None:
    """One side closes with requests outstanding, and its resets may be lost with the NIC. The other
    side's requests fail, at the latest after timeout_ms."""
    hasty = {**KEYS[0], "timeout_ms": 4000}
    with pair(rails, tmp_path, keys=(hasty, hasty)) as scene:
        for moment in range(MOMENTS):
            link = scene.connect(0, moment % COUNT)
            link.move()
            first, other = (
                (link.sender, link.receiver) if closer == 0 else (link.receiver, link.sender)
            )
            ends = {link.sender: ("send", link.sends), link.receiver: ("receive", link.receives)}
            # Its requests are abandoned after a random time; 4 GB take longer.
            first.start(*ends[first], 4096, 1 << 20, draw.random() * 1000 * MOVING_S)
            other.start(*ends[other], 4096, 1 << 20, 60_000)
            scene.set_nic(draw.randrange(2), moment % COUNT, False)
            with suppress(AssertionError):
                first.finish(30)  # "late"
            first.do("close", ends[first][1])
            with pytest.raises(Failed):
                other.finish(20)
            other.do("close", ends[other][1])
            all_up(rails)
        scene.connect(0, 1).move()


@pytest.mark.quick_cases(1)
@ENDS
@pytest.mark.parametrize("ending", ["finalize", "exit", "kill"])
def test_rank_ends_in_a_move(
    rails: Rails, tmp_path: Path, draw: random.Random, closer: int, ending: str
) -> None:
    with pair(rails, tmp_path, keys=KEYS) as scene:
        kept = scene.ranks[1 - closer]
        for nic in range(1, 1 + (MOMENTS + 1) // 2):
            with Rank(scene.ranks[closer].site).init(rails.count) as ends:
                pairs = [(ends, kept), (kept, ends)]
                links = [connect(*pairs[closer], devices=(nic % COUNT,) * 2), connect(kept, ends)]
                for link in links:
                    link.move()
                busy = ending == "kill" and draw.random() < 0.5
                comm = links[1].sends
                if busy:
                    kept.start("send", comm, 4096, 1 << 20, 60_000)
                in_a_move(scene, draw, nic % COUNT)
                if ending == "kill":
                    ends.signal(signal.SIGKILL)
                elif ending == "exit":
                    ends.start("exit")
                    assert ends.wait(30) == 0
                else:
                    ends.do("finalize", timeout=30)
                if busy:
                    with pytest.raises(Failed):
                        kept.finish(70)
                for link in links:
                    kept.do("close", link.sends if link.sender is kept else link.receives)
            all_up(rails)
        assert kept.process.poll() is None
        with Rank(scene.ranks[closer].site).init(rails.count) as fresh:
            connect(fresh, kept).move()
            connect(kept, fresh).move()
