# SPDX-License-Identifier: Apache-2.0
"""64-bit Arm: the vector loop of the checksum in an emulator. The long form builds everything and
runs the tests of the stack."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
FULL = os.environ.get("HARP_TEST_FULL")

pytestmark = pytest.mark.skipif(
    not (shutil.which(COMPILER) and EMULATOR),
    reason="no compiler or emulator for Arm: apt-get install gcc-aarch64-linux-gnu "
    "libc6-dev-arm64-cross qemu-user-static",
)


def test_checksums_agree_and_use_neon(tmp_path: Path) -> None:
    program = tmp_path / "sum_check"
    built = subprocess.run(
        [COMPILER, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-static",
         f"-I{ROOT}", "-o", program, ROOT / "tests/stack/sum_check.c",
         ROOT / "harp/stack/ip/checksum.c", ROOT / "harp/stack/ip/checksum_vector.c"],
        capture_output=True, text=True, timeout=100)  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert EMULATOR
    said = subprocess.run([EMULATOR, program, "1", "200"], capture_output=True, text=True,
                          timeout=100)  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.split() == ["neon", "words"]


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="builds for Arm, in minutes; HARP_TEST_FULL=1")
@pytest.mark.timeout(3600)
def test_stack_engine_and_plugin_pass_on_arm() -> None:
    subprocess.run([ROOT / "tools/arm64"], check=True)
