# SPDX-License-Identifier: Apache-2.0
"""A job that is aborted on purpose: NCCL deregisters memory and closes links with outstanding
requests. HARP does not warn of the consequences, and reports no crash of the peer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import REMOTE_ERROR, Failed, Link, Rank, connect, packet_site

from tools.hosts.lab import Lab

LINKS = 4
SOON_S = 20.0  # on a busy machine
FAILED = "failed: flow 0"
TRUTH = "the peer aborted it, or its process ended: see that host's log"


@pytest.fixture
def ranks(lab: Lab, tmp_path: Path) -> Iterator[tuple[Rank, Rank]]:
    sites = [packet_site(tmp_path / str(host.index), host) for host in lab.hosts]
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        yield one.init(), other.init()


def abort(link: Link) -> None:
    """The receiver closes the link while its request is outstanding."""
    with pytest.raises(AssertionError, match="late"):
        link.receiver.do("receive", link.receives, 1, 1000, 10)
    link.receiver.do("close", link.receives)


def told(rank: Rank, count: int) -> list[str]:
    """Waits for `count` log lines about failed links. Calls of the rank write them."""
    limit = time.monotonic() + SOON_S
    while len(rank.lines(FAILED)) < count and time.monotonic() < limit:
        rank.do("unlisten", rank.listen()[0])
    assert len(rank.lines(FAILED)) == count, rank.lines()
    return rank.lines(FAILED)


def test_peer_abort_is_warned_of_once(ranks: tuple[Rank, Rank]) -> None:
    """The first failed link is a warning. The lines of the others have level INFO."""
    one, other = ranks
    for link in [connect(other, one) for _ in range(LINKS)]:
        abort(link)
    first, *more = told(other, LINKS)
    assert "NCCL WARN" in first and first.endswith(TRUTH)
    assert all("NCCL INFO" in line for line in more)
    assert one.warnings == []


def test_aborting_rank_does_not_warn_of_consequences(ranks: tuple[Rank, Rank]) -> None:
    """The peer deregisters memory in use, which ends a link that is still open."""
    one, other = ranks
    first, second = connect(other, one), connect(one, other)
    abort(first)
    # Nothing is sent yet, so its request is outstanding for certain.
    with pytest.raises(AssertionError, match="late"):
        other.do("receive", second.receives, 1, 65536, 10)
    other.listen()  # the rank deregisters the memory after its answer, and before this one
    with pytest.raises(Failed) as failure:
        one.do("send", second.sends, 10**6, 65536, 20000)
    assert failure.value.code == REMOTE_ERROR
    assert one.warnings == []
    assert len(told(one, 1)) == 1
    assert not list(one.site.run_folder.glob("*.trace"))


def test_peer_exit_without_abort_is_a_warning(ranks: tuple[Rank, Rank]) -> None:
    """Closing an idle link is no abort, so a later exit of the peer is still a warning."""
    one, other = ranks
    done = connect(one, other)
    done.move()
    one.do("close", done.sends)
    link = connect(one, other)
    other.signal(9)
    other.wait()
    with pytest.raises(Failed):
        one.do("send", link.sends, 1000, 65536, 20000)
    (line,) = told(one, 1)
    assert "NCCL WARN" in line and line.endswith(TRUTH)
