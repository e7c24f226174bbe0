# SPDX-License-Identifier: Apache-2.0
"""CRC32C with this CPU's instruction, without it, and with ARM's instruction in an emulator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from harp import paths

ROOT = Path(__file__).resolve().parents[2]
ARM_COMPILER = "aarch64-linux-gnu-gcc"
ARM = "qemu-aarch64" if shutil.which("qemu-aarch64") else "qemu-aarch64-static"


def test_crc32c_variants_agree() -> None:
    check = paths.build_dir() / "tests/plugin/crc_check"
    said = subprocess.run([check, "1", "2000"], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stdout + said.stderr


# The CPU reports no features.
NO_FEATURES = "unsigned long __wrap_getauxval(unsigned long t) { (void)t; return 0; }"


@pytest.mark.parametrize("has_it", [True, False])
def test_crc32c_on_arm_uses_instruction_if_present(tmp_path: Path, has_it: bool) -> None:
    missing = [name for name in (ARM_COMPILER, ARM) if not shutil.which(name)]
    if missing:
        pytest.skip(
            f"no {' and no '.join(missing)}, so ARM's instructions are not tested: "
            "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
        )
    program, trace, stub = tmp_path / "crc_check", tmp_path / "trace", tmp_path / "stub.c"
    stub.write_text(NO_FEATURES)
    built = subprocess.run(
        [ARM_COMPILER, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", f"-I{ROOT}",
         "-o", program, ROOT / "tests/plugin/crc_check.c", ROOT / "plugin/link/crc32c.c",
         *([] if has_it else ["-Wl,--wrap=getauxval", stub])],
        capture_output=True, text=True, timeout=120)  # fmt: skip
    assert built.returncode == 0, built.stderr
    said = subprocess.run([ARM, "-cpu", "cortex-a53", "-d", "in_asm", "-D", trace, program,
                           "1", "500"], capture_output=True, text=True, timeout=100)  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    run = {line for line in trace.read_text().splitlines() if line.startswith("IN: crc32c")}
    assert ("IN: crc32c_arm" in {line.strip() for line in run}) == has_it, run
