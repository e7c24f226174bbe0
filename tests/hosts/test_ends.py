# SPDX-License-Identifier: Apache-2.0
"""Ends that are no faults, and posts that come after them."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import REMOTE_ERROR, Failed, Rank, connect, packet_site

from harp.testing.lab import Lab

SEED = int(os.environ.get("HARP_TEST_SEED") or secrets.randbits(32))
ROUNDS = 100
TIMEOUT_MS = 3000


def by_exit(rank: Rank, link: int) -> None:
    rank.start("exit")


def by_closing(rank: Rank, link: int) -> None:
    rank.start("close", link)
    rank.start("exit")


def by_finalizing(rank: Rank, link: int) -> None:
    rank.start("close", link)
    rank.start("finalize")
    rank.start("exit")


ENDS = [by_exit, by_closing, by_finalizing]
SHAPES = [(1, 8), (8, 65536), (3, 1 << 20), (20, 1000), (1, 0), (2, 3_000_017)]


@pytest.mark.parametrize("own_address", [False, True], ids=["kernel address", "own address"])
def test_receiver_exits_after_its_last_byte(lab: Lab, tmp_path: Path, own_address: bool) -> None:
    """It has done its part; its last acknowledgements may be lost, and the sender must learn all
    the same that every byte arrived. On both sides one frame in a hundred is lost."""
    print(f"HARP_TEST_SEED={SEED}")
    sending = packet_site(
        tmp_path / "0", lab.hosts[0], own_address, f"drop=0.01,seed={SEED}", timeout_ms=TIMEOUT_MS
    )
    slowest = 0.0
    with Rank(sending) as sender:
        sender.init()
        for number in range(ROUNDS // 2):
            receiving = packet_site(
                tmp_path / f"r{number}", lab.hosts[1], own_address,
                f"drop=0.01,seed={SEED + number}", timeout_ms=TIMEOUT_MS,
            )  # fmt: skip
            count, size = SHAPES[number % len(SHAPES)]
            end = ENDS[number // len(SHAPES) % len(ENDS)]
            with Rank(receiving) as receiver:
                receiver.init()
                link = connect(sender, receiver)
                began = time.monotonic()
                link.start(count, size, 4 * TIMEOUT_MS)
                end(receiver, link.receives)
                where = f"round {number}: {count} messages of {size} bytes, ended {end.__name__}"
                try:
                    sender.finish()
                    receiver.finish()
                except (Failed, AssertionError) as failure:
                    raise AssertionError(f"{where}: {failure}; {sender.lines()}") from failure
                slowest = max(slowest, time.monotonic() - began)
                sender.do("close", link.sends)
                assert receiver.wait(5) == 0
                assert receiver.warnings == sender.warnings == [], where
        time.sleep(0.3)  # until the counters have been published
        (process,) = sending.published()
        again = process.totals["tcp_retransmits"]
        sender.do("finalize")
    assert again > ROUNDS // 4, f"only {again} segments were lost: nothing was put to the test"
    print(f"{again} segments were sent again; the slowest round took {slowest * 1e3:.0f} ms")


def posted_after(poster: Rank, call: str, link: int, peer: Rank) -> None:
    """A post on a link that the peer has closed: an error soon, and a line that names the peer."""
    time.sleep(0.1)
    poster.start(call, link, 1, 65536, 3 * TIMEOUT_MS)
    began = time.monotonic()
    with pytest.raises(Failed) as failure:
        poster.finish(TIMEOUT_MS / 1e3 + 5)
    assert failure.value.code == REMOTE_ERROR
    assert time.monotonic() - began < 0.5
    (warning,) = poster.warnings
    assert f"{peer.site.address}:" in warning


@pytest.mark.parametrize("end", ["close", *ENDS], ids=lambda end: getattr(end, "__name__", end))
@pytest.mark.parametrize("closes", ["sender", "receiver"])
def test_post_after_the_peer_has_ended(
    lab: Lab, tmp_path: Path, closes: str, end: "str | Callable[[Rank, int], None]"
) -> None:
    """The ranks disagree on how many messages there are."""
    sites = [
        packet_site(tmp_path / str(host.index), host, timeout_ms=TIMEOUT_MS) for host in lab.hosts
    ]
    with Rank(sites[0]) as sender, Rank(sites[1]) as receiver:
        sender.init()
        receiver.init()
        link = connect(sender, receiver)
        link.move()
        leaves, own = (sender, link.sends) if closes == "sender" else (receiver, link.receives)
        stays, other = (receiver, link.receives) if closes == "sender" else (sender, link.sends)
        if callable(end):
            end(leaves, own)
            leaves.wait(5)
        else:
            leaves.do("close", own)
        posted_after(stays, "receive" if closes == "sender" else "send", other, leaves)
        stays.do("close", other)
        stays.do("finalize")


def test_both_close(lab: Lab, tmp_path: Path) -> None:
    """The usual end, in either order, makes no noise."""
    sites = [packet_site(tmp_path / str(host.index), host) for host in lab.hosts]
    with Rank(sites[0]) as sender, Rank(sites[1]) as receiver:
        sender.init()
        receiver.init()
        for first, second in ((0, 1), (1, 0)) * 3:
            link = connect(sender, receiver)
            link.move()
            ends = [(sender, link.sends), (receiver, link.receives)]
            for rank, number in (ends[first], ends[second]):
                (took,) = rank.do("close", number)
                assert float(took) < 500
                time.sleep(0.02)
        for rank in (sender, receiver):
            rank.do("finalize")
            assert rank.warnings == []
