# SPDX-License-Identifier: Apache-2.0
"""A forked child cannot use HARP: its calls fail cleanly, and its parent is not affected."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import (
    REMOTE_ERROR,
    SYSTEM_ERROR,
    Failed,
    Rank,
    connect,
    packet_site,
    remove_wire,
    wait_until,
    wire_path,
    wire_site,
)

from harp import paths
from tools.hosts.lab import Lab

needs_xdp = pytest.mark.skipif(
    not (paths.build_dir() / "dpdk_glue" / "xdp_program.o").exists(),
    reason="this build has no XDP (no clang)",
)

CHILD_S = 20.0  # the lifetime of an idle child
NOTICED_MS = 5000  # far less than CHILD_S and than timeout_ms


@pytest.fixture(params=[4, 12], ids=["v4", "v12"])
def ranks(lab: Lab, tmp_path: Path, request: Any) -> Iterator[list[Rank]]:
    sites = [packet_site(tmp_path / str(host.index), host, True) for host in lab.hosts]
    with Rank(sites[0], request.param) as one, Rank(sites[1], request.param) as other:
        yield [one.init(), other.init()]


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[list[Rank]]:
    """The two ends of a wire; a wire has no third end."""
    path = wire_path()
    with Rank(wire_site(tmp_path / "1", path, 1)) as one:
        with Rank(wire_site(tmp_path / "2", path, 2)) as other:
            yield [one.init(), other.init()]
    remove_wire(path)


def undisturbed(rank: Rank) -> bool:
    """Whether it has logged no warning, and the statistics are its own."""
    (process,) = rank.site.published()
    return process.pid == rank.process.pid and rank.warnings == []


@pytest.mark.parametrize("forks", ["sender", "receiver"])
def test_calls_in_forked_child_fail(ranks: list[Rank], forks: str) -> None:
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
        # A child has nothing to close, so close may succeed.
        assert {codes["close"], codes["closeListen"]} <= {"0", str(SYSTEM_ERROR)}, codes
        link.move(count=32)
    connect(other, parent, listener).move()
    assert all(undisturbed(rank) for rank in ranks)
    for rank in ranks:
        rank.do("finalize")


def test_parent_works_beside_forked_child(ranks: list[Rank]) -> None:
    """Like workers of a data loader: forked late, long-lived, without use of HARP."""
    link = connect(*ranks)
    link.move()
    for rank in ranks:
        # A child of this child keeps the files that have got the numbers of HARP's.
        assert rank.do("child", int(CHILD_S * 1000)) == ["0"]
    link.move(count=100, size=1 << 20)
    assert all(undisturbed(rank) for rank in ranks)


def test_claim_ends_with_parent_despite_child(ranks: list[Rank]) -> None:
    """The next process gets the file and the address, although the child lives."""
    _is_succeeded(ranks)


def test_wire_end_is_free_after_parent_despite_child(joined: list[Rank]) -> None:
    """The next process gets the end of the wire, although the child lives."""
    _is_succeeded(joined)


@pytest.mark.parametrize("port", ["packet", pytest.param("xdp", marks=needs_xdp)])
def test_fork_during_init_waits_for_it(lab: Lab, tmp_path: Path, port: str) -> None:
    """Init probes for its own address for 300 ms, and HARP's sockets are open then."""
    site = packet_site(tmp_path, lab.hosts[0], True, port=port)
    with Rank(site) as parent:
        assert parent.do("child", int(CHILD_S * 1000), "init", 100) == [str(SYSTEM_ERROR)]
        died = parent.signal(9)
        parent.process.wait(20)
    wait_until(lambda: site.published() == [], CHILD_S / 2, "its counters outlive it")
    with Rank(site) as successor:
        successor.init()
        assert time.monotonic() - died < CHILD_S / 2


@needs_xdp
def test_fork_during_last_finalize_waits_for_it(lab: Lab, tmp_path: Path) -> None:
    """Finalize waits up to 2 s for a peer that is stopped, and HARP's sockets are open then."""
    sites = [packet_site(tmp_path / str(host.index), host, True, port="xdp") for host in lab.hosts]
    with Rank(sites[0]) as parent, Rank(sites[1]) as peer:
        link = connect(parent.init(), peer.init())
        link.move()
        peer.signal(signal.SIGSTOP)
        parent.do("send", link.sends, 1, 64, 5000)  # a copy waits for its acknowledgement
        began = time.monotonic()
        parent.do("child", int(CHILD_S * 1000), "finalize", 300)
        assert time.monotonic() - began > 1, "finalize was over before the fork"
        parent.init()


def _is_succeeded(ranks: list[Rank]) -> None:
    link = connect(*ranks)
    link.move()
    ranks[0].do("child", int(CHILD_S * 1000))
    died = time.monotonic()
    ranks[0].signal(9)
    ranks[0].process.wait(20)
    # A new child needs a moment to close the descriptors that it inherited.
    wait_until(lambda: ranks[0].site.published() == [], CHILD_S / 2, "its counters outlive it")
    with Rank(ranks[0].site, ranks[0].api) as successor:
        successor.init()
        assert time.monotonic() - died < CHILD_S / 2
        with Rank(ranks[1].site) as none:
            with pytest.raises(Failed):
                none.init()  # fails: the file's owner lives
        connect(successor, ranks[1]).move()


@pytest.mark.parametrize(
    ("faults", "instances"),
    [("", 1), ("drop=0", 1), ("", 2)],
    ids=["packet", "behind faults", "two queues"],
)
def test_killed_parent_is_noticed_despite_child(
    lab: Lab, tmp_path: Path, faults: str, instances: int
) -> None:
    """The kernel sends resets to the peers at once if HARP has its address: no process holds the
    ports any more."""
    sites = [
        packet_site(tmp_path / str(host.index), host, faults=faults, instances=instances)
        for host in lab.hosts
    ]
    with Rank(sites[0]) as victim, Rank(sites[1]) as survivor:
        link = connect(survivor.init(), victim.init())
        link.move()
        victim.do("child", int(CHILD_S * 1000))
        time.sleep(0.1)  # the child needs a moment to close its inherited descriptors
        link.move()
        connect(survivor, victim).move()
        victim.signal(9)
        victim.process.wait(20)
        survivor.start("send", link.sends, 1, 65536, 10000)
        with pytest.raises(Failed) as failure:
            survivor.finish()
        assert failure.value.code == REMOTE_ERROR
        assert failure.value.ms < NOTICED_MS, "it waited for timeout_ms, or for the child"
