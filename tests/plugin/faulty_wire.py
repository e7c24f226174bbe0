# SPDX-License-Identifier: Apache-2.0
"""Two ranks on a wire whose sender's port has faults that a test sets, and the sender's flow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, Optional

import pytest
from pairs import rank_at
from plugin_peer import Peer, end_all

from harp.observe import statfile
from harp.observe.statfile import Flow
from tools.hosts.ranks import remove_wire, wait_until, wire_path

API = 12
TIMEOUT_MS = 8000

Start = Callable[..., "tuple[Peer, Peer]"]
Impair = Callable[[str], None]


@pytest.fixture
def impair(tmp_path: Path) -> Impair:
    """Sets the faults of the sender's port from now on. The port reads the file every 10 ms."""
    (tmp_path / "faults").touch()

    def set_to(spec: str) -> None:
        fresh = tmp_path / "faults.new"
        fresh.write_text(spec)
        os.replace(fresh, tmp_path / "faults")
        time.sleep(0.05)

    return set_to


def acknowledged_flow(folder: Path, least: int) -> Flow:
    """The only sending flow of the rank with this run folder, once it has published that more than
    `least` bytes were sent and all are acknowledged."""

    def found() -> Optional[Flow]:
        (process,) = statfile.scan([folder])
        flows = [flow for flow in process.flows if flow.direction == "S"]
        return next((f for f in flows if f.bytes_out > least and f.in_flight == 0), None)

    flow: Flow = wait_until(found, 20, "bytes stay unacknowledged")
    return flow


@pytest.fixture
def start(tmp_path: Path, impair: Impair) -> Iterator[Start]:
    """start(**environment of the sender): an initialized sender and receiver. Their run folders
    are "1" and "2" in tmp_path."""
    wire = wire_path()
    ranks: list[Peer] = []

    def make(**environment: str) -> tuple[Peer, Peer]:
        devices = (f"fault:control={tmp_path}/faults,tso=1|wire:{wire}", f"wire:{wire}")
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
