# SPDX-License-Identifier: Apache-2.0
"""HARP_CHECKSUM=1: a byte that changes between the sender's memory and the wire causes an error,
and the message is not delivered.

The test changes the memory while the fault port drops all sent frames. TCP then reads the changed
memory for its retransmission, so TCP's own checksum is right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from faulty_wire import Impair, Start
from nccl_plugin import SYSTEM_ERROR
from plugin_peer import Peer

from harp.observe import statfile
from tools.hosts.ranks import wait_until

SIZE = 300_000


def chunks_out(folder: Path) -> int:
    (process,) = statfile.scan([folder])
    return process.totals["chunks_out"]


def move(
    sender: Peer, receiver: Peer, impair: Impair, folder: Path, *, change: bool
) -> tuple[dict[str, Any], int]:
    """Sends a message with the pattern of seed 1. change: seed 2's pattern replaces it during the
    transfer. folder: of the sender. Returns the outcome of the receive, and its buffer."""
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
        impair("blackhole=1,side=tx")
    sent = sender.isend(comm=sending, buffer=out, offset=0, size=SIZE, mhandle=out_handle)
    waiting = sender.start("wait", requests=[sent])
    if change:
        # Until a chunk has its checksum. The port drops its frames.
        wait_until(lambda: chunks_out(folder), 20, "no chunk is sent")
        sender.fill(buffer=out, offset=0, size=SIZE, seed=2)
        impair("")
    (outcome,) = receiver.wait(requests=[request])
    waiting.result(timeout=20)
    return outcome, place


def test_unchanged_message_passes_checksum(start: Start, impair: Impair, tmp_path: Path) -> None:
    sender, receiver = start(HARP_CHECKSUM="1")
    outcome, place = move(sender, receiver, impair, tmp_path / "1", change=False)
    assert (outcome["size"], outcome["error"]) == (SIZE, None)
    assert receiver.check(buffer=place, offset=0, size=SIZE, seed=1)


def test_changed_message_fails_checksum(start: Start, impair: Impair, tmp_path: Path) -> None:
    outcome, _ = move(*start(HARP_CHECKSUM="1"), impair, tmp_path / "1", change=True)
    assert (outcome["size"], outcome["error"]) == (None, SYSTEM_ERROR)


def test_changed_message_passes_without_checksum(
    start: Start, impair: Impair, tmp_path: Path
) -> None:
    """Shows that the previous test does change the message."""
    sender, receiver = start()
    outcome, place = move(sender, receiver, impair, tmp_path / "1", change=True)
    assert (outcome["size"], outcome["error"]) == (SIZE, None)
    assert not receiver.check(buffer=place, offset=0, size=SIZE, seed=1)
