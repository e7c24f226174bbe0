# SPDX-License-Identifier: Apache-2.0
"""A copy of the tree with its own build, to try one mutation after another."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from mutations import ROOT, Mutation, MutationError

BUILD_S = 1800  # for the first full build, on a busy machine
TESTS_S = 600
GRACE_S = 10  # for tests to clean up
# Python takes bytecode for current if the source has the same size and second of its last change.
NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
NOT_COPIED = re.compile(r"build.*|\.(venv|git|\w+_cache)")
OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) ([^\s[]+)", re.MULTILINE)

# Two copies of the plugin, which a program loads by name (tests/model/meson.build).
MODEL = [f"tests/model/{name}"
         for name in ("model-links", "libmodel-process-a.so", "libmodel-process-b.so")]  # fmt: skip

# Tests of the stack need only the libraries that they load. Linking the others takes longest.
STACK = [f"harp/testing/{name}.abi3.so" for name in ("_stack", "_fault")]
TARGETS = {
    "tests/stack": [*STACK, "harp/testing/_flow.abi3.so"],
    "tests/dialogues": STACK,
    "tests/model": [*STACK, *MODEL],
    "tests/engine": [
        "harp/testing/_engine.abi3.so",
        "harp/_tables.abi3.so",
        "tests/engine/postpone_check",
    ],
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
    """The result of a run of pytest."""

    passed: frozenset[str]  # names without parameters of tests that passed with all parameters
    failed: frozenset[str]  # names of tests that failed at least once
    killed: str  # the reason why the run ended early; "": it did not
    output: str


class Stopped(Exception):
    """Another thread has called stop."""


@dataclass(frozen=True)
class Ended:
    """A finished command."""

    status: int
    output: str
    late: bool  # it exceeded its time limit


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts a command and its children, and kills those that do not end within GRACE_S."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        limit = time.monotonic() + GRACE_S
        while process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)


def targets_of(tests: Iterable[str]) -> list[str]:
    """The build targets of tests; empty: all targets."""
    found: list[str] = []
    for test in tests:
        folder = test.rpartition("/")[0]
        if folder not in TARGETS:
            return []
        found += TARGETS[folder]
    return sorted(set(found))


class Workbench:
    """A copy of the tree for one thread; any thread may call stop. It writes only in its folder."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._process: Optional[subprocess.Popen[bytes]] = None  # the running command
        self._stopped = False
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

    def stop(self) -> None:
        """Ends the running command; any thread may call this. That command and all later ones raise
        Stopped."""
        with self._lock:
            self._stopped = True
            process = self._process
        if process:
            _end(process)

    def _run(self, command: list[str], bound_s: float, **more: str) -> Ended:
        late = False
        # A file, not a pipe, which a surviving child process would hold open.
        with tempfile.TemporaryFile("w+", dir=self.tree.parent, errors="replace") as said:
            with self._lock:
                if self._stopped:
                    raise Stopped
                process = self._process = subprocess.Popen(
                    command, cwd=self.tree, env={**os.environ, **NO_BYTECODE, **more},
                    start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                )  # fmt: skip
            try:
                process.wait(bound_s)
            except subprocess.TimeoutExpired:
                late = True
                _end(process)
                process.wait()
            with self._lock:
                self._process = None
                if self._stopped:
                    raise Stopped
            said.seek(0)
            return Ended(process.returncode, said.read(), late)

    def _must(self, command: list[str]) -> None:
        ended = self._command(command)
        if ended.status != 0:
            raise MutationError(f"the copy does not build:\n{ended.output[-4000:]}")

    def _command(self, command: list[str]) -> Ended:
        beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        # A killed compiler leaves its temporary files.
        return self._run(command, BUILD_S, PATH=beside, TMPDIR=str(self.tree.parent))

    def _ninja(self, tests: Iterable[str]) -> list[str]:
        return ["ninja", "-C", str(self.build), *targets_of(tests)]

    def run_tests(self, tests: Iterable[str], bound_s: float) -> Outcome:
        ended = self._run(
            [sys.executable, "-m", "pytest", "-q", "-rpfE", "-p", "no:cacheprovider", *tests],
            bound_s, HARP_BUILD_DIR=str(self.build), PYTHONPATH=str(self.tree),
        )  # fmt: skip
        seen: dict[str, set[str]] = {}
        for what, name in OUTCOME.findall(ended.output):
            seen.setdefault(name, set()).add(what)
        killed = ""
        if ended.late:
            killed = f"still ran after {bound_s:.0f} s"
        elif ended.status < 0:
            killed = signal.Signals(-ended.status).name
        return Outcome(
            frozenset(name for name, what in seen.items() if what == {"PASSED"}),
            frozenset(name for name, what in seen.items() if what != {"PASSED"}),
            killed, ended.output,
        )  # fmt: skip

    def missing(self, tests: Iterable[str]) -> dict[str, str]:
        """The tests that fail without a mutation, with the output. Raises MutationError if the tree
        does not build."""
        tests = sorted(set(tests))
        self._must(self._ninja(tests))
        outcome = self.run_tests(tests, BUILD_S)
        return {test: outcome.output[-4000:] for test in tests if test not in outcome.passed}

    def attempt(self, mutation: Mutation, bound_s: float = TESTS_S) -> Verdict:
        """Applies a mutation, runs its tests, and restores the file."""
        began = time.monotonic()
        path = self.tree / mutation.file
        original = path.read_text()
        try:
            path.write_text(mutation.apply(original))
            what, how = self._judge(mutation, bound_s)
        except MutationError as error:
            what, how = BROKEN, str(error)
        finally:
            path.write_text(original)
        return Verdict(mutation, what, how, time.monotonic() - began)

    def _judge(self, mutation: Mutation, bound_s: float) -> tuple[str, str]:
        built = self._command(self._ninja(mutation.caught_by))
        if built.status != 0:
            return BROKEN, f"it does not compile:\n{built.output[-2000:]}"
        outcome = self.run_tests(mutation.caught_by, bound_s)
        if outcome.killed.startswith("SIG"):
            return CAUGHT, f"the tests' process ended by {outcome.killed}"
        if outcome.killed:
            return BROKEN, f"the tests hang: {outcome.killed}"
        blind = [test for test in mutation.caught_by if test not in outcome.failed]
        if blind:
            return SURVIVED, f"not noticed by {', '.join(blind)}"
        return CAUGHT, f"{len(outcome.failed)} of its tests failed"
