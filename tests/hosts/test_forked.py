# SPDX-License-Identifier: Apache-2.0
"""A child has no HARP: whatever it calls fails politely, and its parent does not notice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import SYSTEM_ERROR, Failed, Rank, connect, packet_site, wait_until

from harp.testing.lab import Lab

CHILD_S = 4.0  # how long a child that does nothing stays


@pytest.fixture(params=[4, 12], ids=["v4", "v12"])
def ranks(lab: Lab, tmp_path: Path, request: Any) -> Iterator[list[Rank]]:
    sites = [packet_site(tmp_path / str(host.index), host, True) for host in lab.hosts]
    with Rank(sites[0], request.param) as one, Rank(sites[1], request.param) as other:
        yield [one.init(), other.init()]


def undisturbed(rank: Rank) -> bool:
    """It has said nothing, and what is published is its own."""
    (process,) = rank.site.published()
    return process.pid == rank.process.pid and rank.warnings == []


@pytest.mark.parametrize("forks", ["sender", "receiver"])
def test_child_is_refused(ranks: list[Rank], forks: str) -> None:
    link = connect(*ranks)
    if forks == "sender":
        parent, comm, other = link.sender, link.sends, link.receiver
    else:
        parent, comm, other = link.receiver, link.receives, link.sender
    listener = parent.listen()
    for _ in range(3):
        link.move()
        codes = dict(word.split("=") for word in parent.do("fork", listener[0], comm))
        for call in ("init", "devices", "listen", "accept", "regMr", "post"):
            assert codes[call] == str(SYSTEM_ERROR), codes
        # There is nothing to close, which is as good as closed.
        assert {codes["close"], codes["closeListen"]} <= {"0", str(SYSTEM_ERROR)}, codes
        link.move(count=32)
    connect(other, parent, listener).move()
    assert all(undisturbed(rank) for rank in ranks)
    for rank in ranks:
        rank.do("finalize")


def test_parent_works_beside_its_child(ranks: list[Rank]) -> None:
    """As data loaders' workers are: forked at some time, alive for long, and strangers to HARP."""
    link = connect(*ranks)
    link.move()
    for rank in ranks:
        rank.do("child", int(CHILD_S * 1000))
    link.move(count=100, size=1 << 20)
    assert all(undisturbed(rank) for rank in ranks)


def test_claim_dies_with_the_parent(ranks: list[Rank]) -> None:
    """Whoever comes next gets the file and the address, whatever the children do."""
    link = connect(*ranks)
    link.move()
    ranks[0].do("child", int(CHILD_S * 1000))
    died = time.monotonic()
    ranks[0].signal(9)
    ranks[0].process.wait(5)
    # A child that was forked a moment ago first has to let go of what it inherited.
    wait_until(lambda: ranks[0].site.published() == [], 2, "its counters outlive it")
    with Rank(ranks[0].site, ranks[0].api) as successor:
        successor.init()
        assert time.monotonic() - died < CHILD_S / 2
        with Rank(ranks[1].site) as none:
            with pytest.raises(Failed):
                none.init()  # that file's owner lives
        connect(successor, ranks[1]).move()
