# SPDX-License-Identifier: Apache-2.0
"""The tools of tools/ show their help at once, under their own names."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ("bench", "demo", "faults", "flood", "fuzz", "jobs", "lab", "recovery", "sim", "soak")
SHELL = ("arm64", "lint", "package", "prepare", "test")

pytestmark = pytest.mark.skipif(
    not (ROOT / "build/harp/_tables.abi3.so").exists(), reason="no build in build/"
)


def told(tool: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "tools" / tool, "--help"], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("tool", PYTHON)
def test_python_tools_name_themselves(tool: str) -> None:
    done = told(tool)
    assert done.returncode == 0 and done.stdout.startswith(f"Usage: tools/{tool} ")
    assert done.stderr == "", "it has prepared something first"


@pytest.mark.parametrize("tool", SHELL)
def test_scripts_say_first_what_they_do(tool: str) -> None:
    done = told(tool)
    assert done.returncode == 0 and done.stdout.split("\n")[0] != ""
    assert f"Usage: tools/{tool} " in done.stdout and done.stderr == ""
