# SPDX-License-Identifier: Apache-2.0
"""The schedules of all collectives on up to 9 ranks, and the reductions, without a network."""

from __future__ import annotations

import subprocess

import pytest

from harp import paths


def run(name: str) -> None:
    program = paths.build_dir() / "tests" / "collectives" / name
    if not program.exists():
        pytest.skip(f"{program} is not built: meson compile -C {paths.build_dir()}")
    done = subprocess.run([program], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr


def test_plans_match_end_and_give_right_elements() -> None:
    run("plan-check")


def test_reductions_and_conversions() -> None:
    run("reduce-check")
