# SPDX-License-Identifier: Apache-2.0
"""The programs that `harp perf` starts end with it, also if they ignore that they are asked to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.hosts.ranks import wait_until

PROGRAM = """#!/bin/sh
{trap}
echo $$ > "{folder}/pid$1.new" && mv "{folder}/pid$1.new" "{folder}/pid$1"
exec {waits}
"""
# Programs have a minute to end, so that a test sees what ends them.
ONE = """
from harp.cli import perf_runs
perf_runs._GRACE_S = 60
raise SystemExit(perf_runs.run_program(["{program}", "a"], False))
"""
OVER_SSH = """
from harp.cli import perf_runs
perf_runs._GRACE_S = 60
raise SystemExit(perf_runs.HostRanks(["a", "b"], "{program}", "harp").run(lambda rank: []))
"""


def is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


class Started:
    """A process that runs `code` with a program. A stubborn program ignores SIGTERM and the end of
    its input."""

    def __init__(self, code: str, stubborn: bool, folder: Path) -> None:
        program = folder / "program"
        trap = "trap '' TERM" if stubborn else ""
        waits = "cat" if code == OVER_SSH and not stubborn else "sleep 60"
        program.write_text(PROGRAM.format(folder=folder, trap=trap, waits=waits))
        program.chmod(0o755)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code.format(program=program)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.programs: list[int] = []
        for name in "ab" if code == OVER_SSH else "a":
            file = folder / f"pid{name}"
            wait_until(file.exists, 20, f"{file} must appear")
            self.programs.append(int(file.read_text()))

    def left(self) -> list[int]:
        return [pid for pid in self.programs if is_running(pid)]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=[ONE, OVER_SSH], ids=["one-program", "ssh"])
def code(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(code: str, tmp_path: Path) -> Iterator[Callable[[bool], Started]]:
    all_started = []

    def begin(stubborn: bool) -> Started:
        all_started.append(Started(code, stubborn, tmp_path))
        return all_started[-1]

    yield begin
    for one in all_started:
        one.end()


def test_second_interrupt_kills_programs(start: Callable[[bool], Started]) -> None:
    started = start(True)
    limit = time.monotonic() + 30  # less than the time that programs have to end
    while started.process.poll() is None:
        assert time.monotonic() < limit, "it waits for the programs"
        started.process.send_signal(signal.SIGINT)  # two at once would count as one
        time.sleep(0.5)
    assert started.process.returncode != 0
    wait_until(lambda: not started.left(), 20, "a program is left")


def test_hangup_ends_programs(start: Callable[[bool], Started]) -> None:
    """SIGHUP comes when the terminal is closed. The exit status is one that the help promises."""
    started = start(False)
    started.process.send_signal(signal.SIGHUP)
    assert started.process.wait(20) == 1
    wait_until(lambda: not started.left(), 20, "a program is left")
