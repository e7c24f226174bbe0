# SPDX-License-Identifier: Apache-2.0
"""The Internet checksum (RFC 1071), with each implementation that this CPU supports."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("HARP_BUILD_DIR") or ROOT / "build")
CHECK = BUILD / "harp" / "stack" / "sum_check"
FLAGS = {"avx512": "avx512bw", "avx2": "avx2"}  # as the kernel calls them


def there() -> list[str]:
    if platform.machine() == "aarch64":
        return ["neon", "words"]
    flags = Path("/proc/cpuinfo").read_text().split()
    return [name for name, flag in FLAGS.items() if flag in flags] + ["words"]


@pytest.mark.parametrize("seed", [1, 2])
def test_checksum_variants_agree(seed: int) -> None:
    """And to copy on the way: random lengths and alignments, nothing read or written beside."""
    said = subprocess.run([CHECK, str(seed), "2000"], capture_output=True, text=True, timeout=100)
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.split() == there()
