# SPDX-License-Identifier: Apache-2.0
"""The statistics tell what a flow waits for: acknowledgements, the peer's window, or a receive that
is not posted. tests/stack/test_flow_timers.py has waits for the device."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Optional

from ends import End, ends_between, sizes
from faulty_wire import Impair, Start, acknowledged_flow

from harp.observe import statfile
from harp.observe.statfile import Process
from tools.hosts.ranks import wait_until

SIZE = 16 << 20  # bytes; more than a window
WAITED_MS = 400
PUBLISHED_S = 0.25  # a process publishes its flows every 100 ms


def observed(folder: Path) -> Process:
    time.sleep(PUBLISHED_S)
    (process,) = [statfile.read(path) for path in folder.glob("*.stat")]
    return process


def waits(folder: Path, direction: str) -> dict[str, int]:
    """The sums of the waits of a rank's flows in ms, by their kind."""
    flows = [flow for flow in observed(folder).flows if flow.direction == direction]
    kinds = ("ack", "window", "device", "receive")
    return {kind: sum(getattr(flow, f"{kind}_wait_ms") for flow in flows) for kind in kinds}


def waits_for(folder: Path, direction: str, kind: str, least_ms: float) -> dict[str, int]:
    """The sums, once that of this kind is at least `least_ms`."""

    def found() -> Optional[dict[str, int]]:
        sums = waits(folder, direction)
        return sums if sums[kind] >= least_ms else None

    sums: dict[str, int] = wait_until(found, 20, f"no waits for {kind}")
    return sums


def counted_ms(folder: Path, counter: str) -> float:
    return observed(folder).totals[counter] / 1e6


def finish(sender: End, sent: int, receiver: End, request: int) -> None:
    waiting = sender.rank.start("wait", requests=[sent])
    assert sizes(receiver.rank.wait(requests=[request])) == [SIZE]
    assert sizes(waiting.result(timeout=30)) == [SIZE]


def test_sender_waits_for_window_of_slow_receiver(start: Start, tmp_path: Path) -> None:
    sender, receiver = ends_between(*start(), SIZE, seed=3)
    sent = sender.send(SIZE)
    before = waits_for(tmp_path / "1", "S", "window", 1)
    of_sender = waits_for(tmp_path / "1", "S", "window", before["window"] + WAITED_MS)
    waits_for(tmp_path / "2", "R", "receive", WAITED_MS / 2)
    assert counted_ms(tmp_path / "1", "tcp_window_wait_ns") > WAITED_MS / 2, "it still lasts"
    assert counted_ms(tmp_path / "2", "receive_wait_ns") > WAITED_MS / 2, "it still lasts"
    finish(sender, sent, receiver, receiver.receive(SIZE))
    assert waits(tmp_path / "2", "R")["receive"] > WAITED_MS / 2, "waits that are over count, too"
    assert of_sender["ack"] - before["ack"] < (of_sender["window"] - before["window"]) / 2


def test_sender_waits_for_acknowledgements(start: Start, impair: Impair, tmp_path: Path) -> None:
    sender, receiver = ends_between(*start(), SIZE, seed=3)
    request = receiver.receive(SIZE)
    impair("blackhole=1,side=both")
    sent = sender.send(SIZE)
    of_sender = waits_for(tmp_path / "1", "S", "ack", WAITED_MS)
    assert of_sender["window"] < of_sender["ack"] / 2
    assert counted_ms(tmp_path / "1", "tcp_ack_wait_ns") > WAITED_MS / 2, "it still lasts"
    impair("")
    finish(sender, sent, receiver, request)
    assert waits(tmp_path / "2", "R")["receive"] < WAITED_MS / 2


def test_idle_sender_waits_for_nothing(start: Start, tmp_path: Path) -> None:
    sender, receiver = ends_between(*start(), SIZE, seed=3)
    finish(sender, sender.send(SIZE), receiver, receiver.receive(SIZE))
    acknowledged_flow(tmp_path / "1", SIZE)
    before = sum(waits(tmp_path / "1", "S").values())
    receiver.receive(SIZE)
    time.sleep(WAITED_MS / 1e3)
    assert sum(waits(tmp_path / "1", "S").values()) < before + WAITED_MS / 2
