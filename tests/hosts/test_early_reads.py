# SPDX-License-Identifier: Apache-2.0
"""NCCL's protocols LL and LL128: the GPU reads a receive buffer before the receive completes. Only
the message's own bytes may appear in it, each at its place."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest
from ranks import Rank, connect, packet_site

from tools.hosts.lab import Lab

COUNT, SIZE, LIMIT_MS = 400, 61440, 60_000  # messages of LL's size; each has many segments


def poll_messages(lab: Lab, folder: Path, links: int, api: int, faults: str = "") -> None:
    """Sends on several links at a time. A thread of the receiver reads the buffers meanwhile."""
    one, other = lab.hosts
    with (
        Rank(packet_site(folder / "0", one, faults=faults), api) as sender,
        Rank(packet_site(folder / "1", other), api) as receiver,
    ):
        sender.init()
        receiver.init()
        made = [connect(sender, receiver) for _ in range(links)]
        receiver.start("poll", COUNT, SIZE, LIMIT_MS, *(link.receives for link in made))
        sender.start("exchange", COUNT, SIZE, LIMIT_MS, *(link.sends for link in made))
        sender.finish(LIMIT_MS / 1e3)
        _, scans = receiver.finish(LIMIT_MS / 1e3)
        assert int(scans) > 100


@pytest.mark.parametrize("api", [8, 12])
def test_polled_buffer_gets_no_byte_of_another_link(
    make_lab: Callable[..., Lab], tmp_path: Path, api: int
) -> None:
    """Version 8 does not mark such receives; the size of the registered memory tells."""
    poll_messages(make_lab(2, "veth-1500-nooff"), tmp_path, 4, api)


def test_polled_buffer_gets_no_later_segment(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    """Lost and reordered segments: what follows a hole waits elsewhere."""
    faults = "drop=0.01,reorder=0.05"
    poll_messages(make_lab(2, "veth-1500-nooff"), tmp_path, 1, 12, faults)
