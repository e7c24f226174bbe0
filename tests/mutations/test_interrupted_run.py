# SPDX-License-Identifier: Apache-2.0
"""tools/test --mutations leaves nothing behind after an interrupt or a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("yaml")

from mutations import ROOT  # noqa: E402

DEAD = 4194305  # above the kernel's largest process id


def inside(folder: Path) -> Iterator[int]:
    """The processes with their working folder there."""
    for entry in Path("/proc").iterdir():
        try:
            where = os.readlink(entry / "cwd") if entry.name.isdigit() else ""
        except OSError:
            continue  # another user's process, or ended
        if Path(where).is_relative_to(folder):
            yield int(entry.name)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_run_leaves_no_files_or_processes(
    tmp_path: Path, number: signal.Signals
) -> None:
    """It leaves neither its copies, nor processes in them, nor the files of a killed earlier
    run."""
    mine = tmp_path / f"harp-mutations-{os.getpid()}-x"
    for folder in (tmp_path / f"harp-mutations-{DEAD}-x" / "0" / "tree", mine):
        folder.mkdir(parents=True)
    run = subprocess.Popen(
        [sys.executable, ROOT / "tests/mutations/mutate.py", "--jobs", "2", "recovery", "network"],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    limit = time.monotonic() + 60
    while len(list(tmp_path.glob("*/?/build"))) < 2 and time.monotonic() < limit:
        time.sleep(0.05)
    assert list(inside(tmp_path)), "no process is running"
    run.send_signal(number)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert "0 of " in said
    assert list(tmp_path.iterdir()) == [mine]
    assert list(inside(tmp_path)) == []
