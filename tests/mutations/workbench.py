# SPDX-License-Identifier: Apache-2.0
"""A copy of the tree with a build of its own, in which one mutation after another is tried."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mutations import ROOT, Mutation, MutationError

BUILD_S = 1800  # the first build of all, on a busy machine
TESTS_S = 600
NOT_COPIED = re.compile(r"build.*|\.(venv|git|\w+_cache)")
OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) ([^\s[]+)", re.MULTILINE)

# Tests of the stack need only the libraries that they load; linking the rest takes longest.
TARGETS = {
    "tests/stack": ["harp/testing/_stack.abi3.so", "harp/testing/_flow.abi3.so"],
    "tests/dialogues": ["harp/testing/_stack.abi3.so"],
    "tests/model": ["harp/testing/_stack.abi3.so"],
    "tests/engine": ["harp/testing/_engine.abi3.so", "harp/_tables.abi3.so"],
    "tests/sim": ["tests/sim/harp-sim"],
}

CAUGHT, SURVIVED, BROKEN = "caught", "survived", "error"


@dataclass(frozen=True)
class Verdict:
    mutation: Mutation
    what: str  # CAUGHT, SURVIVED or BROKEN
    how: str
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """How a run of pytest ended."""

    passed: frozenset[str]  # of the tests' names without parameters: all of them passed
    failed: frozenset[str]  # at least one failed
    killed: str  # by what the run ended before its time; "": it did not
    output: str


def _run(command: list[str], folder: Path, bound_s: float, **more: str) -> tuple[int, str]:
    """Exit status and output; -SIGKILL with all its children where it ran past bound_s."""
    process = subprocess.Popen(
        command, cwd=folder, env={**os.environ, **more}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=bound_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, output


def targets_of(tests: Iterable[str]) -> list[str]:
    """What has to be built for tests; none: everything."""
    found: list[str] = []
    for test in tests:
        folder = test.rpartition("/")[0]
        if folder not in TARGETS:
            return []
        found += TARGETS[folder]
    return sorted(set(found))


class Workbench:
    """Not for two threads at once. Nothing outside of its folder is written."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self._root = root
        self.tree = folder / "tree"
        self.build = folder / "build"

    def set_up(self) -> None:
        """Copies the tree and makes its build folder."""
        def left_out(folder: str, names: list[str]) -> list[str]:
            top = Path(folder) == self._root
            return [name for name in names
                    if name == "__pycache__" or (top and NOT_COPIED.fullmatch(name))]  # fmt: skip

        shutil.copytree(self._root, self.tree, ignore=left_out, symlinks=True)
        self._must(["meson", "setup", str(self.build), "-Dbuildtype=debug", "-Doptimization=1"])

    def _must(self, command: list[str]) -> None:
        status, output = self._command(command)
        if status != 0:
            raise MutationError(f"the copy does not build:\n{output[-4000:]}")

    def _command(self, command: list[str]) -> tuple[int, str]:
        beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return _run(command, self.tree, BUILD_S, PATH=beside)

    def _ninja(self, tests: Iterable[str]) -> list[str]:
        return ["ninja", "-C", str(self.build), *targets_of(tests)]

    def run_tests(self, tests: Iterable[str], bound_s: float) -> Outcome:
        status, output = _run(
            [sys.executable, "-m", "pytest", "-q", "-rpfE", "-p", "no:cacheprovider", *tests],
            self.tree, bound_s, HARP_BUILD_DIR=str(self.build), PYTHONPATH=str(self.tree),
        )  # fmt: skip
        seen: dict[str, set[str]] = {}
        for what, name in OUTCOME.findall(output):
            seen.setdefault(name, set()).add(what)
        killed = ""
        if status == -signal.SIGKILL:
            killed = f"still ran after {bound_s:.0f} s"
        elif status < 0:
            killed = signal.Signals(-status).name
        return Outcome(
            frozenset(name for name, what in seen.items() if what == {"PASSED"}),
            frozenset(name for name, what in seen.items() if what != {"PASSED"}),
            killed, output,
        )  # fmt: skip

    def missing(self, tests: Iterable[str]) -> dict[str, str]:
        """Of tests that must pass while nothing is broken: those that do not, and the output.
        MutationError: the tree does not build."""
        tests = sorted(set(tests))
        self._must(self._ninja(tests))
        outcome = self.run_tests(tests, BUILD_S)
        return {test: outcome.output[-4000:] for test in tests if test not in outcome.passed}

    def attempt(self, mutation: Mutation, bound_s: float = TESTS_S) -> Verdict:
        """MutationError: the line is not there."""
        began = time.monotonic()
        path = self.tree / mutation.file
        original = path.read_text()
        path.write_text(mutation.apply(original))
        try:
            what, how = self._judge(mutation, bound_s)
        finally:
            path.write_text(original)
        return Verdict(mutation, what, how, time.monotonic() - began)

    def _judge(self, mutation: Mutation, bound_s: float) -> tuple[str, str]:
        status, output = self._command(self._ninja(mutation.caught_by))
        if status != 0:
            return BROKEN, f"it does not compile:\n{output[-2000:]}"
        outcome = self.run_tests(mutation.caught_by, bound_s)
        if outcome.killed.startswith("SIG"):
            return CAUGHT, f"the tests' process ended by {outcome.killed}"
        if outcome.killed:
            return BROKEN, f"the tests hang: {outcome.killed}"
        blind = [test for test in mutation.caught_by if test not in outcome.failed]
        if blind:
            return SURVIVED, f"not noticed by {', '.join(blind)}"
        return CAUGHT, f"{len(outcome.failed)} of its tests failed"
