# SPDX-License-Identifier: Apache-2.0
"""Orderly ends of links, and posts after them."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import REMOTE_ERROR, Failed, Link, Rank, connect, packet_site

from tools.hosts.lab import Lab

SEED = int(os.environ.get("HARP_TEST_SEED") or secrets.randbits(32))
FULL = bool(os.environ.get("HARP_TEST_FULL"))
ROUNDS = 50 if FULL else 24  # at least one for each shape and end
TIMEOUT_MS = 3000
PORTS_HELD = 16  # local ports that the packet port holds at first
PORTS_REST_S = 2.2  # more than the time that a local port is not reused after a link
CONTROL_S = 0.1  # more than the interval in which the fault port reads its file


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


def finish_well(link: Link, number: int) -> None:
    """One job: the receiver ends right after its last byte, and neither side sees an error."""
    sender, receiver = link.sender, link.receiver
    count, size = SHAPES[number % len(SHAPES)]
    end = ENDS[number // len(SHAPES) % len(ENDS)]
    link.start(count, size, 4 * TIMEOUT_MS)
    end(receiver, link.receives)
    where = f"round {number}: {count} messages of {size} bytes, ended {end.__name__}"
    try:
        sender.finish()
        receiver.finish()
    except (Failed, AssertionError) as failure:
        raise AssertionError(f"{where}: {failure}; {sender.lines()}") from failure
    sender.do("close", link.sends)
    assert receiver.wait() == 0
    assert receiver.warnings == sender.warnings == [], where


def lost_frames(sender: Rank) -> int:
    """The number of the sender's retransmissions."""
    time.sleep(0.3)  # until the counters are published
    (process,) = sender.site.published()
    return process.totals["tcp_retransmits"]


MODES = pytest.mark.parametrize("own_address", [False, True], ids=["kernel address", "own address"])


@pytest.mark.slow
@MODES
def test_receiver_exit_after_last_byte_is_no_error(
    lab: Lab, tmp_path: Path, own_address: bool
) -> None:
    """In both directions, one frame in a hundred is lost."""
    print(f"HARP_TEST_SEED={SEED}")
    sending, receiving = lab.hosts
    faults = f"drop=0.01,seed={SEED}"
    site = packet_site(tmp_path / "0", sending, own_address, faults, timeout_ms=TIMEOUT_MS)
    with Rank(site) as sender:
        sender.init()
        for number in range(ROUNDS):
            faults = f"drop=0.01,seed={SEED + number}"
            site = packet_site(
                tmp_path / f"r{number}", receiving, own_address, faults, timeout_ms=TIMEOUT_MS
            )
            with Rank(site) as receiver:
                finish_well(connect(sender, receiver.init()), number)
        assert lost_frames(sender) > 0, "nothing was put to the test"
        sender.do("finalize")


@pytest.mark.sanitized
@pytest.mark.slow
@MODES
def test_lost_last_acks_are_recovered(lab: Lab, tmp_path: Path, own_address: bool) -> None:
    """Every third frame of the receiver is lost, mostly ACKs. The receiver must stay until its last
    ACK has arrived."""
    print(f"HARP_TEST_SEED={SEED}")
    sending, receiving = lab.hosts
    site = packet_site(tmp_path / "0", sending, own_address, timeout_ms=TIMEOUT_MS)
    with Rank(site) as sender:
        sender.init()
        for number in range(18):
            losses = tmp_path / f"losses{number}"
            faults = f"seed={SEED + number},control={losses}"
            site = packet_site(
                tmp_path / f"r{number}", receiving, own_address, faults, timeout_ms=TIMEOUT_MS
            )
            with Rank(site) as receiver:
                link = connect(sender, receiver.init())
                losses.write_text("drop=0.33\n")
                time.sleep(CONTROL_S)
                finish_well(link, number)
        assert lost_frames(sender) > 5, "nothing was put to the test"
        sender.do("finalize")


def posted_after(poster: Rank, call: str, link: int, peer: Rank) -> None:
    """Checks that a post on a link closed by the peer fails soon, with a line that names the
    peer."""
    time.sleep(0.1)
    poster.start(call, link, 1, 65536, 3 * TIMEOUT_MS)
    began = time.monotonic()
    with pytest.raises(Failed) as failure:
        poster.finish(TIMEOUT_MS / 1e3 + 5)
    assert failure.value.code == REMOTE_ERROR
    assert time.monotonic() - began < TIMEOUT_MS / 2e3, "it waited for timeout_ms"
    (warning,) = poster.warnings
    assert f"{peer.site.address}:" in warning


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("end", ["close", *ENDS], ids=lambda end: getattr(end, "__name__", end))
@pytest.mark.parametrize("closes", ["sender", "receiver"])
def test_post_after_peer_close_or_exit_fails(
    lab: Lab, tmp_path: Path, closes: str, end: "str | Callable[[Rank, int], None]"
) -> None:
    """The ranks disagree on the number of messages."""
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
            leaves.wait()
        else:
            leaves.do("close", own)
        posted_after(stays, "receive" if closes == "sender" else "send", other, leaves)
        stays.do("close", other)
        stays.do("finalize")


def test_close_in_either_order_is_silent(lab: Lab, tmp_path: Path) -> None:
    """The usual end logs no warning, in either order."""
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
                assert float(took) < TIMEOUT_MS / 2, "it waited for timeout_ms"
                time.sleep(0.02)
        for rank in (sender, receiver):
            rank.do("finalize")
            assert rank.warnings == []


@pytest.mark.slow
def test_reused_local_ports_survive_time_wait(lab: Lab, tmp_path: Path) -> None:
    """Local ports are reused while their last connections to the same listener are still in
    TIME-WAIT."""
    sites = [packet_site(tmp_path / str(host.index), host) for host in lab.hosts]
    with Rank(sites[0]) as sender, Rank(sites[1]) as receiver:
        sender.init()
        receiver.init()
        listener = receiver.listen()
        for _ in range(2):
            for _ in range(PORTS_HELD - 1):
                link = connect(sender, receiver, listener)
                sender.do("close", link.sends)
                receiver.do("close", link.receives)
            time.sleep(PORTS_REST_S)
        assert sender.warnings == [] and receiver.warnings == []
