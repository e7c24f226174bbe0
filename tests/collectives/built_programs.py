# SPDX-License-Identifier: Apache-2.0
"""Runs the C programs of this folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Optional

import pytest

from harp import paths


def run(name: str, *args: object, environment: Optional[Mapping[str, str]] = None) -> None:
    """The program must exit with 0. Skips the test if the build folder lacks the program.
    environment: added to this process's."""
    program = paths.build_dir() / "tests" / "collectives" / name
    if not program.exists():
        pytest.skip(f"{program} is not built: meson compile -C {paths.build_dir()}")
    done = subprocess.run(
        [program, *map(str, args)],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
