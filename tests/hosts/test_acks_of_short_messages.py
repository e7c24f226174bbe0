# SPDX-License-Identifier: Apache-2.0
"""The sends of short messages do not wait for acknowledgements, so their messages share them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import Rank, connect, packet_site

from tools.hosts.lab import Lab

MESSAGES = 2000
SHORT, LONG = 16384, 40000  # bytes; a message of more than 32 KiB is not copied
TRIES = 12  # messages that arrive half a millisecond apart share nothing, as on a busy machine


def received(rank: Rank) -> tuple[int, int]:
    """(acknowledgements sent, messages received) so far."""
    (process,) = rank.site.published()
    return process.totals["tcp_acks_out"], process.totals["messages_in"]


def expect_acks_per_message(
    lab: Lab, folder: Path, size: int, right: Callable[[float], bool]
) -> None:
    """Moves messages until a try is right."""
    sites = [packet_site(folder / str(host.index), host, threads="caller") for host in lab.hosts]
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        link = connect(one.init(), other.init())
        found = []
        for _ in range(TRIES):
            before = received(other)
            link.move(MESSAGES, size)
            acks, messages = (now - then for now, then in zip(received(other), before))
            found.append(acks / messages)
            if right(found[-1]):
                return
        pytest.fail(f"acknowledgements for each message in {TRIES} tries: {found}")


def test_short_messages_share_acknowledgements(lab: Lab, tmp_path: Path) -> None:
    expect_acks_per_message(lab, tmp_path, SHORT, lambda acks: acks < 0.75)


def test_long_messages_are_acknowledged_at_once(lab: Lab, tmp_path: Path) -> None:
    expect_acks_per_message(lab, tmp_path, LONG, lambda acks: acks > 0.5)
