# SPDX-License-Identifier: Apache-2.0
"""An instance leaves frames in its port for some polls, but not for long."""

from __future__ import annotations

import subprocess

import pytest

from harp import paths


@pytest.mark.parametrize(
    "polls, ns, asked",
    [(8, 500, 2), (0, 500, 10), (8, 1_000_000, 10), (8, 9_000, 8)],
    ids=["for-its-polls", "not-any-more", "not-if-polls-are-rare", "not-beyond-its-time"],
)
def test_instance_takes_frames_again(polls: int, ns: int, asked: int) -> None:
    program = paths.build_dir() / "tests/engine/postpone_check"
    said = subprocess.run(
        [program, str(polls), str(ns)], capture_output=True, text=True, timeout=60
    )
    assert said.returncode == 0, said.stderr
    assert int(said.stdout) == asked
