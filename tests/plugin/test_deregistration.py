# SPDX-License-Identifier: Apache-2.0
"""Memory that is unmapped right after its send, with a device that releases memory late.

pytest tests/plugin/test_deregistration.py --rounds 100000     some minutes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pairs import rank_at
from plugin_peer import Peer, end_all

from tools.hosts.ranks import remove_wire, wire_path

SIZE = 65536  # more than what isend copies
HOLD_US = 300
ROUNDS = 300

Start = Callable[[str, str], "tuple[Peer, Peer]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(device, device): two initialized ranks with these devices, started one by one."""
    ranks: list[Peer] = []

    def make(*devices: str) -> tuple[Peer, Peer]:
        for number, device in enumerate(devices, 1):
            keys = f"device = {device}\naddress = 10.9.0.{number}/24\n"
            ranks.append(rank_at(tmp_path / str(number), keys))
        return ranks[0], ranks[1]

    try:
        yield make
    finally:
        end_all(ranks)


@pytest.fixture
def devices() -> Iterator[Callable[[str], "tuple[str, str]"]]:
    """devices(faults): the two ends of a wire, the first behind the fault port."""
    wire = wire_path()
    yield lambda faults: (f"fault:{faults}|wire:{wire}", f"wire:{wire}")
    remove_wire(wire)


def test_deregistered_memory_is_not_read_by_late_device(
    devices: Callable[[str], "tuple[str, str]"], start: Start, request: pytest.FixtureRequest
) -> None:
    """The device reads the memory again long after the peer's acknowledgement. Deregistration must
    wait for that, because the memory is unmapped right afterwards."""
    rounds = request.config.getoption("--rounds", default=None) or ROUNDS
    sender, receiver = start(*devices(f"hold_us={HOLD_US}"))
    listening = receiver.listen()
    sends = sender.connect(handle=listening["handle"])["comm"]
    receives = receiver.accept(listener=listening["listener"])["comm"]
    receiving = receiver.start(
        "stream", comm=receives, sends=False, count=rounds, size=SIZE, seed=1, outstanding=8
    )
    sending = sender.start("send_fleeting", comm=sends, count=rounds, size=SIZE, seed=1)
    assert sending.result(timeout=30 + rounds) is None
    outcome = receiving.result(timeout=60)
    assert (outcome["done"], outcome["wrong"], outcome["error"]) == (rounds, 0, None)
