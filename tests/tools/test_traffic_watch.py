# SPDX-License-Identifier: Apache-2.0
"""The watch must distinguish the kernel's segments from those of other senders."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.transfers import PORT, transfer
from tools.hosts.lab import Lab
from tools.measure.carriers import Watch

FRAMES = Path(__file__).with_name("numbered_frames.py")
CONTROL = 29411


def send_frames(lab: Lab, count: int) -> None:
    """Sends TCP frames past the kernel."""
    lab.hosts[1].run([sys.executable, FRAMES, "send", "eth0", lab.hosts[0].mac, count])


@pytest.mark.parametrize("hosts", [2, 4])
def test_kernel_segments_equal_control_connection(hosts: int) -> None:
    with Lab(hosts) as lab:
        with Watch(lab, PORT) as watch:
            for other in lab.hosts[1:]:
                transfer(other, lab.hosts[0], 1_000_000)
            send_frames(lab, 10)
    seen = watch.seen
    assert seen and seen.kernel_only_controlled(), seen
    assert all(segments > 1_000_000 / 1460 for segments in seen.kernel_segments[1:])
    assert seen.control_bytes == 1_000_000 * (hosts - 1)
    assert seen.lost == 0


def test_other_kernel_segment_is_detected() -> None:
    with Lab() as lab:
        with Watch(lab, CONTROL) as watch:
            # A refused connection: one SYN, one reset.
            code = f"import socket; socket.socket().connect_ex(('{lab.hosts[0].address}', 9))"
            lab.hosts[1].run([sys.executable, "-c", code])
    assert watch.seen and not watch.seen.kernel_only_controlled()
    assert watch.seen.kernel_segments == [1, 1]
    assert watch.seen.kernel_resets == [1, 0]
    assert watch.seen.kernel_text() == "host 0 +1 (control 0, resets 1), host 1 +1 (control 0)"
    assert watch.seen.control_segments == [0, 0]


def test_foreign_frames_count_as_data() -> None:
    with Lab() as lab:
        with Watch(lab, CONTROL) as watch:
            send_frames(lab, 500)
    seen = watch.seen
    assert seen and seen.kernel_only_controlled()
    assert seen.kernel_segments == [0, 0]
    # Their TCP header is zero, so all bytes after the IPv4 header count as payload.
    assert seen.data_bytes == 500 * 44
    assert list(seen.data_ports) == [("10.66.0.1", 0)]
    assert "10.66.0.1:0 0.0 MB" in seen.capture_text()


def test_failure_leaves_no_capture_process() -> None:
    with Lab() as lab:
        with pytest.raises(KeyError):
            with Watch(lab, CONTROL) as watch:
                raise KeyError("as a row that fails")
        assert watch.seen is None
        alive = subprocess.run(
            ["ip", "netns", "pids", lab.hosts[0].namespace],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert alive.split() == []
