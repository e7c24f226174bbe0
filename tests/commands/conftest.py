# SPDX-License-Identifier: Apache-2.0
"""Fixtures that run the commands as users do, without HARP's or NCCL's variables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harp.observe import statfile
from tools.hosts.lab_fixtures import lab

__all__ = ["folders", "harp", "lab"]

KEPT = ("HARP_BUILD_DIR",)

Harp = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the subfolders config and run, named by HARP's variables. This process sees no
    statistics in /dev/shm: other tests run beside this one."""
    monkeypatch.setattr(statfile, "SHARED_MEMORY", tmp_path / "shm")
    for name in list(os.environ):
        if name.startswith(("HARP_", "NCCL_")) and name not in KEPT:
            monkeypatch.delenv(name)
    for name in ("config", "run"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(
            {"config": "HARP_CONF_DIR", "run": "HARP_RUN_DIR"}[name], str(tmp_path / name)
        )
    return tmp_path


@pytest.fixture
def harp(folders: Path) -> Harp:
    """Runs harp, and checks its exit status and that it shows no traceback."""

    def run(*args: str, code: int = 0, module: str = "harp") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", module, *args],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, f"harp {args}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return run
