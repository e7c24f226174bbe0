# SPDX-License-Identifier: Apache-2.0
"""CRC32C, by this CPU's instruction and as CPUs without one do it."""

from __future__ import annotations

import subprocess

from harp import paths


def test_with_and_without_an_instruction_for_it() -> None:
    check = paths.build_dir() / "tests/plugin/crc_check"
    said = subprocess.run([check, "1", "2000"], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stdout + said.stderr
