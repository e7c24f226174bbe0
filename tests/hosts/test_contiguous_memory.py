# SPDX-License-Identifier: Apache-2.0
"""The packet port sends long frames in one buffer of the kernel. It sends them in pages if the
kernel has no contiguous memory, and where the kernel segments them itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from long_frames import long_frames
from ranks import preloads

from tools.hosts.lab import Lab

pytestmark = preloads


def test_long_frames_are_linear(lab: Lab, tmp_path: Path) -> None:
    sent = long_frames(lab, tmp_path, "nothing")
    assert "r" not in sent and sent.count("l") > 500
    # The copy of a few frames would be slow at their distance from the payload.
    assert sent.count("p") < sent.count("l") / 4


def test_frames_go_in_pages_without_contiguous_memory(lab: Lab, tmp_path: Path) -> None:
    sent = long_frames(lab, tmp_path, "memory")
    assert sent.count("r") < 20 and "l" not in sent and sent.count("p") > 500
    first = sent.index("r")
    assert sent[first + 1] == "p", "the refused frame itself goes in pages"


def test_full_queue_is_no_lack_of_memory(lab: Lab, tmp_path: Path) -> None:
    """Both forms of a frame fail then, and later frames are linear again."""
    sent = long_frames(lab, tmp_path, "queue")
    assert sent.count("r") > 50 and sent.count("l") > 500
    assert sent.count("p") < sent.count("l") / 4


def test_draining_queue_is_no_lack_of_memory(lab: Lab, tmp_path: Path) -> None:
    """The frame in pages gets through then, but so do later linear frames."""
    sent = long_frames(lab, tmp_path, "draining queue")
    assert sent.count("r") > 50 and sent.count("l") > 300


def test_kernel_segments_frames_in_pages(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    sent = long_frames(make_lab(wire="veth-9000-nooff"), tmp_path, "nothing")
    assert "l" not in sent and sent.count("p") > 500
