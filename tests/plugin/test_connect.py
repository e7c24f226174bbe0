# SPDX-License-Identifier: Apache-2.0
"""connect when NCCL calls it again late, or never."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ends import End, ends_between, errors_of
from nccl_plugin import REMOTE_ERROR
from pairs import rank_at
from plugin_peer import Peer, end_all

from harp.observe import statfile
from tools.hosts.ranks import remove_wire, wait_until, wire_path

API = 12
TIMEOUT_MS = 1000
ABANDONED_S = 5.0  # without a call of connect


@contextmanager
def ranks_on_wire(folder: Path, more: str) -> Iterator[tuple[Peer, Peer]]:
    wire = wire_path()
    made: list[Peer] = []
    try:
        for number in (1, 2):
            keys = f"device = wire:{wire}\naddress = 10.9.0.{number}/24\n"
            keys += f"timeout_ms = {TIMEOUT_MS}\n{more}\n"
            made.append(rank_at(folder / str(number), keys, API))
        yield made[0], made[1]
    finally:
        end_all(made)
        remove_wire(wire)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[tuple[Peer, Peer]]:
    with ranks_on_wire(tmp_path, "flows = 2") as both:
        yield both


def test_connect_called_after_timeout_still_completes(ranks: tuple[Peer, Peer]) -> None:
    one, other = ranks
    listening = other.listen()
    outcome = one.connect(handle=listening["handle"], pause=2.5 * TIMEOUT_MS / 1e3)
    assert outcome["comm"] and outcome["tries"] == 2
    assert other.accept(listener=listening["listener"])["comm"]


@pytest.mark.sanitized
@pytest.mark.slow
def test_connect_never_called_again_resets_peer(ranks: tuple[Peer, Peer]) -> None:
    """The peer, which waits for a message, gets an error. Both ranks can connect again."""
    one, other = ranks
    for _ in range(5):  # a first call that takes long finds the link open
        listening = other.listen()
        outcome = one.connect(handle=listening["handle"], timeout=0.0001)
        if outcome["comm"] is None:
            break
    assert outcome["comm"] is None and outcome["tries"] == 1
    end = End.of(other, other.accept(listener=listening["listener"])["comm"], 4096)
    assert errors_of(other, [end.receive(4096)], ABANDONED_S + 5) == [REMOTE_ERROR]
    again = other.listen()
    assert one.connect(handle=again["handle"])["comm"]
    assert other.accept(listener=again["listener"])["comm"]


def test_flows_that_the_peer_keeps_open_leave_room_for_new_ones(tmp_path: Path) -> None:
    """A sender closes 72 links of 16 flows, and the receiver keeps its ends open. The sender resets
    flows beyond a quarter of its connections."""
    with ranks_on_wire(tmp_path, "flows = 16\ninstances = 1") as (one, other):

        def connections() -> int:
            (process,) = statfile.scan([tmp_path / "1"])
            return process.totals["tcp_connections"]

        most = 0
        for _ in range(72):
            sender, _receiver = ends_between(one, other, 4096)
            sender.close()
            most = max(most, connections())
        assert most > 1024
        wait_until(lambda: connections() <= 1024, 20 + TIMEOUT_MS / 1e3, "flows linger")
        assert connections() > 900
        assert ends_between(one, other, 4096)
