# SPDX-License-Identifier: Apache-2.0
"""tools/test --coverage: measures how much of the C code the tests cover, and lists the rest."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
from report import BOUNDS, ROOT, CoverageError, exclusions, failures, read, table

PASS_S = 1200  # a hanging run is ended and reported
GCOVR_S = 600
SUMMARY = re.compile(r"^=+ (.*) in [0-9.]+s.* =+$", re.MULTILINE)
FAILED = re.compile(r"^(?:FAILED|ERROR) .*$", re.MULTILINE)

# The objects that count. Every program has the same objects of the stack.
OBJECTS = ("harp/stack/libharp_stack.a.p", "harp/engine", "plugin/libnccl-net.so.p",
           "tests/plugin/crc_check.p")  # fmt: skip
# assert() has a branch that must never be taken.
ASSERTS = r".*\bassert\("


@dataclass(frozen=True)
class Pass:
    """One run of pytest; passes run in parallel. The environment overrides its variables."""

    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


# Each version of the interface shares its lines with one of these. Loopback only reaches the
# reference plugin, which does not count.
FEW = {
    "HARP_TEST_APIS": "4,7,10,12",
    "HARP_TEST_TRANSPORTS": "wire,flows,packet,ethdev",
    "HARP_TEST_GENTLY": "1",
}
# test_outsider links the archive to another program, without coverage counters. memcheck covers
# nothing more than other runs.
PASSES = (
    Pass("stack and engine", ("tests/stack", "tests/dialogues", "tests/model", "tests/engine",
                              "--ignore=tests/stack/test_stack_library.py")),
    Pass("plugin", ("tests/plugin", "tests/links", "tests/hosts",
                    "--ignore=tests/hosts/test_memcheck.py"), FEW),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    of: Pass
    status: int
    output: str
    seconds: float

    def __str__(self) -> str:
        summaries = SUMMARY.findall(self.output)
        said = summaries[-1] if summaries else f"pytest ended with status {self.status}"
        return f"{self.of.name}: {said} ({self.seconds:.0f} s)"


class Runner:
    """Runs programs, each in its own process group, and leaves none behind."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()

    def run(self, command: Sequence[str], bound_s: float, **more: str) -> tuple[int, str]:
        """Returns the exit status and the output. The status is negative after bound_s seconds."""
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **more}, text=True, errors="replace",
            start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._running.add(process)
        try:
            output, _ = process.communicate(timeout=bound_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        finally:
            self._running.discard(process)
        return process.returncode, output

    def stop(self) -> None:
        """Sends SIGINT: pytest then removes its namespaces and their processes."""
        for process in tuple(self._running):
            process.send_signal(signal.SIGINT)


@contextmanager
def stopped_by_signals(runner: Runner) -> Iterator[None]:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        runner.stop()
        sys.exit(130)


def forget(build: Path, all_of_it: bool) -> None:
    """Removes the counts of earlier runs: all of them, or only those of recompiled objects."""
    for data in build.rglob("*.gcda"):
        notes = data.with_suffix(".gcno")
        if all_of_it or not notes.exists() or data.stat().st_mtime < notes.stat().st_mtime:
            data.unlink()


def run_tests(runner: Runner, build: Path, one: Pass) -> Outcome:
    """One pass, with the build that counts."""
    began = time.monotonic()
    # Passes run side by side: none writes pytest's cache.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *one.arguments]
    few = {name: value for name, value in one.environment.items() if name not in os.environ}
    more = {"HARP_BUILD_DIR": str(build), **few}
    status, output = runner.run(command, PASS_S, **more)
    return Outcome(one, status, output, time.monotonic() - began)


def ask_gcovr(runner: Runner, build: Path) -> Path:
    """Runs gcovr. Returns the path of its JSON report. Raises CoverageError if it makes none."""
    report = build / "reached.json"
    command = [
        str(Path(sys.executable).parent / "gcovr"), "--root", str(ROOT),
        "--object-directory", str(build), "-j", "2", "--json", str(report),
        # Branches added by the compiler are on lines without code.
        "--exclude-unreachable-branches", "--exclude-branches-by-pattern", ASSERTS,
        # One line of plugin/nccl/shim.h is another function in each version.
        "--merge-mode-functions=separate",
        *(option for area in BOUNDS for option in ("--filter", f"{ROOT}/{area}/[^/]*$")),
        *(str(build / folder) for folder in OBJECTS),
    ]  # fmt: skip
    report.unlink(missing_ok=True)
    status, output = runner.run(command, GCOVR_S)
    if status != 0:
        raise CoverageError(f"gcovr ended with status {status}:\n{output[-4000:]}")
    return report


@click.command(context_settings={"help_option_names": ["-h", "--help"],
                                 "ignore_unknown_options": True})  # fmt: skip
@click.option("--report", "only_report", is_flag=True, help="Run no tests; report earlier runs.")
@click.option("--branches", is_flag=True, help="Also list the branches never taken.")
@click.option("--build", type=click.Path(path_type=Path, exists=True, file_okay=False),
              default=ROOT / "build-coverage", help="A build with b_coverage=true.")  # fmt: skip
@click.argument("tests", nargs=-1, metavar="[PYTEST ARGUMENT]...")
def main(only_report: bool, branches: bool, build: Path, tests: tuple[str, ...]) -> None:
    """Run the tests of the stack, the engine and the plugin; print the coverage of each, and the
    code that was not covered. Named tests add to the counts of earlier runs.

    Exit: 0 all bounds are met, 1 one is not, or a test failed, 2 wrong usage, 130 interrupted.
    """
    build = build.resolve()
    forget(build, all_of_it=not (tests or only_report))
    passes = (Pass("named tests", tests, FEW),) if tests else PASSES
    runner = Runner()
    with ThreadPoolExecutor(len(passes)) as pool, stopped_by_signals(runner):
        outcomes = [] if only_report else [
            pool.submit(run_tests, runner, build, one) for one in passes]  # fmt: skip
        ended = [outcome.result() for outcome in outcomes]
    bad = [outcome for outcome in ended if outcome.status != 0]
    try:
        areas = read(ask_gcovr(runner, build))
    except CoverageError as error:
        raise click.ClickException(str(error)) from None

    for area in areas.values():
        for gap in area.gaps:
            click.echo(str(gap))
        for line in area.untaken if branches else ():
            click.echo(str(line))
    for place, reason in exclusions().items():
        click.echo(f"left out: {place}: {reason}")
    click.echo(f"\n{table(areas)}\n")
    for outcome in ended:
        click.echo(str(outcome))
    for outcome in bad:
        click.echo("\n".join(FAILED.findall(outcome.output)) or outcome.output[-4000:])
    wanting = failures(areas)
    click.echo("\n".join(wanting) or "all bounds are met")
    sys.exit(1 if wanting or bad else 0)


if __name__ == "__main__":
    main()
