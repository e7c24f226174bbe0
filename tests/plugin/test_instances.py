# SPDX-License-Identifier: Apache-2.0
"""Several instances, each with its own stack and worker, carry the flows of one link. A rank
connects to itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
from pairs import rank_at
from plugin_peer import Peer, end_all

from harp.observe import statfile
from tools.hosts.ranks import remove_wire, wire_path

API = 12
INSTANCES, FLOWS = 2, 4
COUNT, SIZE = 40, 1_000_003

Start = Callable[[int], "list[Peer]"]


def _keys(wire: Path, number: int) -> str:
    return (
        f"device = wire:{wire}\naddress = 10.9.0.{number}/24\n"
        f"instances = {INSTANCES}\nflows = {FLOWS}\n"
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(n): n initialized ranks; their folders are 0, 1, ..."""
    wire = wire_path()
    ranks: list[Peer] = []

    def make(count: int) -> list[Peer]:
        for number in range(count):
            ranks.append(rank_at(tmp_path / str(number), _keys(wire, number + 1), API))
        return ranks

    try:
        yield make
    finally:
        end_all(ranks)
        remove_wire(wire)


def _number(task: Path) -> int:
    return int(task.name)


def by_instance(folder: Path, name: str) -> list[int]:
    (process,) = statfile.scan([folder])
    return [instance[name] for instance in process.instances]


def test_all_instances_carry_one_link(start: Start, tmp_path: Path) -> None:
    sender, receiver = start(2)
    listening = receiver.listen()
    sends = sender.connect(handle=listening["handle"])["comm"]
    receives = receiver.accept(listener=listening["listener"])["comm"]
    how = {"count": COUNT, "size": SIZE, "seed": 7, "outstanding": 4}
    sending = sender.start("stream", comm=sends, sends=True, **how)
    got = receiver.stream(comm=receives, sends=False, **how)
    assert (got["done"], got["wrong"], got["error"]) == (COUNT, 0, None)
    assert sending.result(timeout=20)["done"] == COUNT
    for folder, name in ((tmp_path / "0", "chunks_out"), (tmp_path / "1", "chunks_in")):
        chunks = by_instance(folder, name)
        assert len(chunks) == INSTANCES and all(chunks), chunks


def test_workers_run_on_configured_cores(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    given = [cores[-1], cores[0]]
    wire = wire_path()
    rank = rank_at(tmp_path / "0", _keys(wire, 1) + f"cores = {given[0]},{given[1]}\n", API)
    try:
        kept = []
        for task in sorted(Path(f"/proc/{rank.process.pid}/task").iterdir(), key=_number):
            if (task / "comm").read_text() == "harp\n":
                kept.append(os.sched_getaffinity(_number(task)))
    finally:
        rank.end()
        remove_wire(wire)
    assert kept == [{core} for core in given]


def test_a_rank_connects_to_itself(start: Start) -> None:
    """A NIC does not return a frame to its sender, so these frames stay inside the process."""
    (rank,) = start(1)
    listening = rank.listen()
    sends = rank.connect(handle=listening["handle"])["comm"]
    receives = rank.accept(listener=listening["listener"])["comm"]
    out, place = rank.buffer(size=SIZE, seed=3), rank.buffer(size=SIZE)
    out_handle = rank.register(comm=sends, buffer=out)
    place_handle = rank.register(comm=receives, buffer=place)
    received = rank.irecv(comm=receives, buffer=place, offset=0, size=SIZE, mhandle=place_handle)
    sent = rank.isend(comm=sends, buffer=out, offset=0, size=SIZE, mhandle=out_handle)
    outcomes = rank.wait(requests=[received, sent])
    assert [outcome["size"] for outcome in outcomes] == [SIZE, SIZE], outcomes
    assert rank.check(buffer=place, offset=0, size=SIZE, seed=3)
