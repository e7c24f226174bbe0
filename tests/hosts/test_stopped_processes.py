# SPDX-License-Identifier: Apache-2.0
"""A process is stopped for a while (a debugger, a live migration, a busy host), and the job
continues. The stopped process does not count its own pause as silence of the peer. The peer does
not fail before its own timeout_ms."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from ranks import Link, Rank, connect, packet_site

from tools.hosts.lab import Lab

FULL = bool(os.environ.get("HARP_TEST_FULL"))
DEFAULT_TIMEOUT_MS = 60_000  # timeout_ms of the running process: the default
SHORT_TIMEOUT_MS = 1000  # timeout_ms of the stopped process: its own pause does not count
PAUSE_S = 50.0 if FULL else 2.0
SOON_S = 10.0  # on a busy machine; a backed-off RTO can last as long as the stop
SIZE = 1 << 20
WAIT_MS = int(PAUSE_S * 1e3) + 60_000


@pytest.fixture
def ranks(lab: Lab, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Rank]]:
    """Two ranks; the tests stop the first one. The parameter: with HARP's own addresses."""
    own = getattr(request, "param", False)
    sites = [
        packet_site(tmp_path / str(host.index), host, own, timeout_ms=timeout, flows=2)
        for host, timeout in zip(lab.hosts, (SHORT_TIMEOUT_MS, DEFAULT_TIMEOUT_MS))
    ]
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        one.init()
        other.init()
        yield [one, other]


def pause(rank: Rank, seconds: float = PAUSE_S) -> None:
    rank.signal(signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        rank.signal(signal.SIGCONT)


def idle(rank: Rank, link: Link) -> None:
    pause(rank)


def under_way(rank: Rank, link: Link) -> None:
    link.start(1000, SIZE, WAIT_MS)
    time.sleep(0.1)
    pause(rank)
    link.finish(WAIT_MS / 1e3)


def receiver_waits(rank: Rank, link: Link) -> None:
    link.receiver.start("receive", link.receives, 4, SIZE, WAIT_MS)
    pause(rank)
    link.sender.do("send", link.sends, 4, SIZE, WAIT_MS, timeout=WAIT_MS / 1e3)
    link.receiver.finish(WAIT_MS / 1e3)


def window_is_closed(rank: Rank, link: Link) -> None:
    link.sender.start("send", link.sends, 32, SIZE, WAIT_MS)
    time.sleep(0.3)
    pause(rank)
    link.receiver.do("receive", link.receives, 32, SIZE, WAIT_MS, timeout=WAIT_MS / 1e3)
    link.sender.finish(WAIT_MS / 1e3)


MOMENTS: list[Callable[[Rank, Link], None]] = [idle, under_way, receiver_waits, window_is_closed]


def noticed_its_pause(rank: Rank) -> bool:
    """The effect alone is no sure sign: frames that came during the stop end the silence."""
    (process,) = rank.site.published()
    return process.totals["poll_stalls"] > 0


def go_on(ranks: list[Rank], moment: Callable[[Rank, Link], None], stopped: str) -> None:
    one, other = ranks
    link = connect(one, other) if stopped == "sender" else connect(other, one)
    link.move()
    moment(one, link)
    began = time.monotonic()
    link.move()
    assert time.monotonic() - began < SOON_S
    assert one.warnings == other.warnings == []
    assert noticed_its_pause(one)


def marks(moment: Callable[[Rank, Link], None], stopped: str) -> Sequence[pytest.MarkDecorator]:
    """tools/test --fast only stops the sender of messages that are under way."""
    if moment is not under_way:
        return [pytest.mark.slow]
    return [] if stopped == "sender" else [pytest.mark.slow, pytest.mark.sanitized]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("moment", "stopped"),
    [
        pytest.param(
            moment, stopped, id=f"{moment.__name__}-{stopped}", marks=marks(moment, stopped)
        )
        for moment in MOMENTS
        for stopped in ("sender", "receiver")
    ],
)
def test_stopped_process_resumes_job(
    ranks: list[Rank], moment: Callable[[Rank, Link], None], stopped: str
) -> None:
    go_on(ranks, moment, stopped)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [True], ids=["own address"], indirect=True)
@pytest.mark.parametrize("stopped", ["sender", "receiver"])
def test_stopped_process_with_own_address_resumes_job(ranks: list[Rank], stopped: str) -> None:
    """No host answers ARP for the address during the stop."""
    go_on(ranks, under_way, stopped)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [True], ids=["own address"], indirect=True)
def test_long_stop_with_own_address_resumes_job(ranks: list[Rank]) -> None:
    """The stop is longer than the time after which a dead host is noticed."""
    one, other = ranks
    link = connect(one, other)
    link.move()
    other.start("receive", link.receives, 4, SIZE, WAIT_MS)
    pause(one, 11.0)
    one.do("send", link.sends, 4, SIZE, WAIT_MS, timeout=WAIT_MS / 1e3)
    other.finish(WAIT_MS / 1e3)
    assert one.warnings == other.warnings == []


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "ranks,stopped",
    [
        (False, "connector"),
        (False, "acceptor"),
        pytest.param(True, "acceptor", marks=pytest.mark.slow),
    ],
    ids=["connector", "acceptor", "acceptor with an address of its own"],
    indirect=["ranks"],
)
def test_stop_during_link_setup_does_not_fail_link(ranks: list[Rank], stopped: str) -> None:
    """The stop of an acceptor is longer than ARP's retries, if HARP has an address of its own."""
    seconds = max(PAUSE_S, 6.0 if stopped == "acceptor" else 0.0)
    one, other = ranks
    connector, acceptor = (one, other) if stopped == "connector" else (other, one)
    listener, handle = acceptor.listen()
    if stopped == "acceptor":
        one.signal(signal.SIGSTOP)
        connector.start("connect", handle, WAIT_MS)
        time.sleep(seconds)
        one.signal(signal.SIGCONT)
    else:
        connector.start("connect", handle, WAIT_MS)
        pause(one)
    comm = int(connector.finish(WAIT_MS / 1e3)[0])
    link = Link(connector, acceptor, comm, acceptor.accept(listener))
    link.move()
    assert one.warnings == other.warnings == []
