# SPDX-License-Identifier: Apache-2.0
"""HARP_CHECKSUM=1: a byte that changes between the sender's memory and the wire causes an error,
and the message is not delivered.

The test changes the memory while the fault port drops all sent frames. TCP then reads the changed
memory for its retransmission, so TCP's own checksum is right.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
from nccl_plugin import SYSTEM_ERROR
from pairs import rank_at
from plugin_peer import Peer, end_all

from tools.hosts.ranks import remove_wire, wire_path

API = 12
SIZE = 300_000
TIMEOUT_MS = 5000

Start = Callable[..., "tuple[Peer, Peer]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(**environment of the sender): an initialized sender and receiver."""
    wire = wire_path()
    control = tmp_path / "faults"
    control.touch()
    ranks: list[Peer] = []

    def make(**environment: str) -> tuple[Peer, Peer]:
        devices = (f"fault:control={control},tso=1|wire:{wire}", f"wire:{wire}")
        for number, device in enumerate(devices, 1):
            keys = f"device = {device}\naddress = 10.9.0.{number}/24\n"
            keys += f"timeout_ms = {TIMEOUT_MS}\n"
            mine = environment if number == 1 else {}
            ranks.append(rank_at(tmp_path / str(number), keys, API, **mine))
        return ranks[0], ranks[1]

    try:
        yield make
    finally:
        end_all(ranks)
        remove_wire(wire)


def impair(folder: Path, spec: str) -> None:
    """Sets the faults from now on; the port reads the file every 10 ms."""
    fresh = folder / "faults.new"
    fresh.write_text(spec)
    os.replace(fresh, folder / "faults")
    time.sleep(0.05)


def move(sender: Peer, receiver: Peer, folder: Path, *, change: bool) -> tuple[dict[str, Any], int]:
    """Sends a message with the pattern of seed 1. change: seed 2's pattern replaces it during the
    transfer. Returns the outcome of the receive, and its buffer."""
    listening = receiver.listen()
    sending = sender.connect(handle=listening["handle"])["comm"]
    receiving = receiver.accept(listener=listening["listener"])["comm"]
    out, place = sender.buffer(size=SIZE, seed=1), receiver.buffer(size=SIZE)
    out_handle = sender.register(comm=sending, buffer=out)
    place_handle = receiver.register(comm=receiving, buffer=place)
    request = receiver.irecv(
        comm=receiving, buffer=place, offset=0, size=SIZE, mhandle=place_handle
    )
    if change:
        impair(folder, "blackhole=1,side=tx")
    sent = sender.isend(comm=sending, buffer=out, offset=0, size=SIZE, mhandle=out_handle)
    waiting = sender.start("wait", requests=[sent])
    if change:
        time.sleep(0.05)  # until the chunks have their checksums and the frames are dropped
        sender.fill(buffer=out, offset=0, size=SIZE, seed=2)
        impair(folder, "")
    (outcome,) = receiver.wait(requests=[request])
    waiting.result(timeout=20)
    return outcome, place


def test_unchanged_message_passes_checksum(start: Start, tmp_path: Path) -> None:
    sender, receiver = start(HARP_CHECKSUM="1")
    outcome, place = move(sender, receiver, tmp_path, change=False)
    assert (outcome["size"], outcome["error"]) == (SIZE, None)
    assert receiver.check(buffer=place, offset=0, size=SIZE, seed=1)


def test_changed_message_fails_checksum(start: Start, tmp_path: Path) -> None:
    outcome, _ = move(*start(HARP_CHECKSUM="1"), tmp_path, change=True)
    assert (outcome["size"], outcome["error"]) == (None, SYSTEM_ERROR)


def test_changed_message_passes_without_checksum(start: Start, tmp_path: Path) -> None:
    """Shows that the previous test does change the message."""
    sender, receiver = start()
    outcome, place = move(sender, receiver, tmp_path, change=True)
    assert (outcome["size"], outcome["error"]) == (SIZE, None)
    assert not receiver.check(buffer=place, offset=0, size=SIZE, seed=1)
