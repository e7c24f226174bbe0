# SPDX-License-Identifier: Apache-2.0
"""tools/test with programs of the test's own in place of pytest: its end and its exit status."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tools.hosts.ranks import wait_until

ROOT = Path(__file__).resolve().parents[2]


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def start(tree: Path, runs: str, *options: str) -> "subprocess.Popen[str]":
    """tools/test in a tree where each run of pytest is the shell command `runs`."""
    program(tree / "tools/prepare", "exit 0")
    program(tree / "tools/lab", "exit 0")
    program(tree / ".venv/bin/python", runs)
    shutil.copy(ROOT / "tools/test", tree / "tools/test")
    return subprocess.Popen(
        [tree / "tools/test", *options], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_watched(pid: int) -> bool:
    """Whether the process's parent, timeout(1), waits. It loses a signal that comes earlier."""
    parent = fields(pid)[1]
    return fields(int(parent))[0] == "S"


def fields(pid: int) -> list[str]:
    """A process's state, its parent, and more."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_all_runs(tmp_path: Path, number: signal.Signals) -> None:
    """A closed terminal sends SIGHUP."""
    run = start(tmp_path, 'echo $$ > "$PYTHONPATH/pid"; exec sleep 60', "--fast", "tests/x.py")
    said = tmp_path / "pid"
    try:
        wait_until(lambda: said.exists() and said.read_text().endswith("\n"), 20, "no run")
        pid = int(said.read_text())
        wait_until(lambda: is_watched(pid), 20, "timeout(1) does not wait")
        run.send_signal(number)
        output, _ = run.communicate(timeout=20)
    finally:
        run.kill()
    assert run.returncode == 130, output
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("runs", "status"),
    [("exit 5", 1), ("exit 0", 0), ("exit 1", 1), ('case "$*" in *not*) exit 5; esac', 0)],
)
def test_exit_status_is_that_of_all_runs(tmp_path: Path, runs: str, status: int) -> None:
    """Pytest ends with 5 if it selects nothing. A part of the runs may do so."""
    run = start(tmp_path, runs, "-k", "word")
    output, _ = run.communicate(timeout=60)
    assert run.returncode == status, output
    assert ("no test was selected" in output) is (runs == "exit 5")
