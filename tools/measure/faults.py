# SPDX-License-Identifier: Apache-2.0
"""The command tools/faults: runs all-reduces with faults, many times each, and prints a table."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Optional

import click

from harp.paths import nccl_plugin_path, perf_program
from tools.hosts.lab import Lab, LabError
from tools.hosts.rails import add_rails
from tools.hosts.ranks import TooLate
from tools.measure.fault_series import Series, run_series
from tools.measure.fault_table import FAULTS, RAIL_FAULTS
from tools.measure.fault_trials import (
    BETWEEN_PROCESSES,
    CRASH,
    HANG,
    OTHER,
    TRANSPORTS,
    WRONG,
    Fault,
    Outcome,
    Setting,
    run_trial,
)
from tools.measure.options import first_option, json_option
from tools.measure.priority import going_first
from tools.measure.records import describe_host
from tools.measure.tables import markdown

SCHEMA = "harp.faults/1"
TIMEOUT_MS = 1000
PROGRESS_S = 15.0
STOP_S = 30.0  # seconds for a process with trials to clean up

Task = tuple[str, int]  # a fault's name, the number of the trial


@dataclass
class Row:
    """All trials of one fault."""

    fault: Fault
    outcomes: list[Outcome] = field(default_factory=list)

    def count(self, kind: str) -> int:
        return sum(outcome.kind == kind for outcome in self.outcomes)

    def cells(self) -> list[str]:
        times = [one.error_s for one in self.outcomes if one.error_s is not None]
        seconds = [f"{median(times):.2f}", f"{max(times):.2f}"] if times else ["–", "–"]
        counts = [str(self.count(kind)) for kind in (self.fault.ends, HANG, CRASH, WRONG, OTHER)]
        again = str(sum(one.missed for one in self.outcomes))
        fault = self.fault
        return [
            f"{fault.name}: {fault.what}",
            str(len(self.outcomes)),
            fault.ends,
            *counts,
            again,
            *seconds,
        ]


HEADER = ("fault", "times", "expected", "as expected", "hangs", "crashes", "wrong bytes", "other",
          "done again", "error after p50 s", "max s")  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    numbers = [i for i in range(len(HEADER)) if i not in (0, 2)]
    return markdown(HEADER, [row.cells() for row in rows if row.outcomes], numbers)


# -- trials, in child processes


@contextmanager
def _hosts(transport: str) -> Iterator[Optional[Lab]]:
    if transport in BETWEEN_PROCESSES:
        yield None
    else:
        with Lab(hosts=2, wire="veth-1500") as lab:
            yield lab


def _leave(number: int, frame: Optional[FrameType]) -> None:
    """Ends the process. It ignores more signals, so that the `with` blocks can clean up."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _keep(folder: Path, logs: Path, outcome: Outcome) -> None:
    kept = logs / f"{outcome.fault}-{outcome.number}"
    logs.mkdir(parents=True, exist_ok=True)
    shutil.copytree(folder, kept, dirs_exist_ok=True)
    outcome.logs = str(kept)


def _table(nics: int) -> Sequence[Fault]:
    return RAIL_FAULTS if nics > 1 else FAULTS


def _serve(
    line: Connection, transport: str, nics: int, settings: dict[str, Any], logs: Path
) -> None:
    """Runs the trials received on `line` until it is closed. Sends an outcome for each, or an error
    text if a trial could not run."""
    by_name = {fault.name: fault for fault in _table(nics)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sends SIGTERM instead
    signal.signal(signal.SIGTERM, _leave)
    try:
        with _hosts(transport) as lab:
            rails = add_rails(lab, nics) if lab and nics > 1 else None
            setting = Setting(transport, lab, rails=rails, **settings)
            while True:
                name, number = line.recv()
                with tempfile.TemporaryDirectory(prefix="harp-faults-") as folder:
                    outcome = run_trial(by_name[name], number, setting, Path(folder))
                    if not outcome.expected:
                        _keep(Path(folder), logs, outcome)
                line.send(outcome)
    except EOFError:
        pass
    except (LabError, TooLate, OSError) as error:
        line.send(f"{type(error).__name__}: {error}")


def _answer(line: Connection) -> Outcome:
    try:
        answer = line.recv()
    except EOFError:
        answer = "a process with trials has ended"
    if not isinstance(answer, Outcome):
        raise click.ClickException(f"trials cannot continue: {answer}")
    return answer


class Servers:
    """Processes that run trials in parallel, for the length of a `with` block."""

    def __init__(
        self, count: int, transport: str, nics: int, settings: dict[str, Any], logs: Path
    ) -> None:
        self._arguments = (transport, nics, settings, logs)
        self._count = count
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._lines: list[Connection] = []

    def __enter__(self) -> Servers:
        # Forked processes would keep the lines of the others open after this process's death.
        context = multiprocessing.get_context("spawn")
        for _ in range(self._count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, *self._arguments))
            process.start()
            theirs.close()
            self._processes.append(process)
            self._lines.append(ours)
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the processes, with their labs. A running trial is aborted."""
        for line in self._lines:
            line.close()
        for process in self._processes:
            if process.is_alive():
                process.terminate()
        for process in self._processes:
            process.join(STOP_S)

    def run(self, tasks: Sequence[Task], stop_early: bool) -> Iterator[Outcome]:
        """Yields the outcomes as they arrive. stop_early: start no more trials after an unexpected
        outcome. Raises ClickException if trials cannot run."""
        left, idle = deque(tasks), list(self._lines)
        while left or len(idle) < len(self._lines):
            while left and idle:
                idle.pop().send(left.popleft())
            for line in wait([line for line in self._lines if line not in idle]):
                assert isinstance(line, Connection)
                outcome = _answer(line)
                idle.append(line)
                if stop_early and not outcome.expected:
                    left.clear()
                yield outcome


# -- the command


def _chosen(names: Optional[str], transport: str, nics: int = 1) -> list[Fault]:
    faults = _table(nics)
    wanted = [name.strip() for name in names.split(",")] if names else []
    unknown = [name for name in wanted if name not in {fault.name for fault in faults}]
    if unknown:
        known = ", ".join(fault.name for fault in faults)
        raise click.BadParameter(f"unknown fault {unknown[0]!r}; the faults are {known}")
    chosen = [fault for fault in faults if not wanted or fault.name in wanted]
    possible = [fault for fault in chosen if transport in fault.transports]
    if wanted and len(possible) < len(chosen):
        left_out = ", ".join(fault.name for fault in chosen if fault not in possible)
        raise click.BadParameter(f"{left_out}: not possible over {transport}")
    return possible


def _check_host(transport: str) -> None:
    if transport not in BETWEEN_PROCESSES and os.geteuid() != 0:
        raise click.UsageError("hosts are network namespaces: run this as root")
    try:
        perf_program(), nccl_plugin_path()
    except FileNotFoundError as error:
        raise click.ClickException(str(error)) from None


def _say(began: float, text: str) -> None:
    click.echo(f"[{time.monotonic() - began:5.0f} s] {text}")


def _follow(rows: dict[str, Row], outcomes: Iterator[Outcome], times: int) -> None:
    """Sorts outcomes into their rows, and prints the progress."""
    began = said = time.monotonic()
    for outcome in outcomes:
        row = rows[outcome.fault]
        row.outcomes.append(outcome)
        if not outcome.expected:
            _say(began, f"{outcome.fault} {outcome.number}: {outcome.kind}: {outcome.text}")
            _say(began, f"  its logs: {outcome.logs}")
        if len(row.outcomes) == times or time.monotonic() - said > PROGRESS_S:
            said = time.monotonic()
            _say(began, f"{outcome.fault}: {len(row.outcomes)} of {times}")


def _save(path: Path, **found: Any) -> None:
    document = {"schema": SCHEMA, "host": describe_host(), **found}
    path.write_text(json.dumps(document, indent=1) + "\n")


def _series_text(series: Series) -> str:
    took = f"{median(series.times):.2f} s, max {max(series.times):.2f} s" if series.times else "–"
    return (
        f"{series.blackholes} blackholes on one flow of four; flows replaced: {series.replaced}; "
        f"after p50 {took}; {series.messages} messages, wrong: {series.wrong}"
    )


def _series(seconds: int, transport: str, settings: dict[str, Any], logs: Path) -> Series:
    try:
        with _hosts(transport) as lab, tempfile.TemporaryDirectory(prefix="harp-faults-") as folder:
            seen = run_series(Setting(transport, lab, **settings), seconds, Path(folder))
            if seen.failure:
                shutil.copytree(folder, logs, dirs_exist_ok=True)
            return seen
    except LabError as error:
        raise click.ClickException(str(error)) from None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--times", default=100, show_default=True, type=click.IntRange(1), help="Trials of each fault."
)
@click.option(
    "--only",
    metavar="NAME,...",
    help="Only these faults, of " + ", ".join(fault.name for fault in FAULTS) + ".",
)
@click.option(
    "--transport",
    default="packet",
    show_default=True,
    type=click.Choice(TRANSPORTS),
    help="packet, xdp: with the kernel's address; packet-own: with HARP's own; wire: in memory; "
    "ethdev: DPDK, between vhost and virtio_user.",
)
@click.option(
    "--nics",
    default=1,
    show_default=True,
    type=click.IntRange(1, 8),
    help="NICs of each host, over packet. A fault on one of several must not end the job: "
    + ", ".join(fault.name for fault in RAIL_FAULTS)
    + ".",
)
@click.option(
    "--series",
    type=click.IntRange(1, 3600),
    metavar="SECONDS",
    help="Instead: one job with a blackhole each second on one flow of four, and with the default "
    "timeout of links.",
)
@click.option("--seed", type=int, help="Seed of the random times [random, and printed].")
@click.option(
    "--timeout-ms",
    default=TIMEOUT_MS,
    show_default=True,
    type=click.IntRange(500, 60000),
    help="The key timeout_ms of the ranks: it bounds the time to an error.",
)
@click.option(
    "--at-once",
    default=max(1, min(4, (os.cpu_count() or 1))),
    show_default=True,
    type=click.IntRange(1, 64),
    help="Number of parallel trials.",
)
@click.option("--keep-going", is_flag=True, help="Continue after an unexpected outcome.")
@click.option(
    "--inject-wrong", is_flag=True, help="Flip a byte in each trial; every trial must fail."
)
@click.option(
    "--logs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the logs of unexpected outcomes [a new one in the folder of temporary files].",
)
@json_option("all outcomes")
@first_option
def main(
    times: int,
    only: Optional[str],
    transport: str,
    nics: int,
    series: Optional[int],
    seed: Optional[int],
    timeout_ms: int,
    at_once: int,
    keep_going: bool,
    inject_wrong: bool,
    logs: Optional[Path],
    json_path: Optional[Path],
    first: bool,
) -> None:
    """Inject faults into all-reduces at random times, and check how the jobs end.

    Every iteration is verified. Depending on the fault, the job must succeed, or all
    of its ranks must fail within timeout_ms and one second.

    Exit: 0 if every trial ended as expected, without a hang, a crash or a wrong
    byte; 1 if one did not; 2 on wrong usage.
    """
    if nics > 1 and (transport != "packet" or series):
        raise click.UsageError("--nics is for trials over packet")
    chosen = _chosen(only, transport, nics)
    _check_host(transport)
    signal.signal(signal.SIGTERM, _leave)
    seed = secrets.randbits(32) if seed is None else seed
    settings = {"seed": seed, "timeout_ms": timeout_ms, "inject_wrong": inject_wrong}
    asked = {"transport": transport, "nics": nics, **settings}
    where = logs or Path(tempfile.gettempdir()) / f"harp-faults-{seed}"
    several = f", {nics} NICs a host" if nics > 1 else ""
    click.echo(f"--seed {seed}, over {transport}{several}, timeout_ms {timeout_ms}")
    if series:
        with going_first(first):
            seen = _series(series, transport, settings, where)
        click.echo(_series_text(seen))
        if json_path:
            _save(json_path, **asked, series=asdict(seen))
        if seen.failure:
            click.echo(f"FAIL {seen.failure}\nits logs: {where}", err=True)
        sys.exit(1 if seen.failure else 0)

    _allow_core_files()
    rows = {fault.name: Row(fault) for fault in chosen}
    tasks = [(name, number) for name in rows for number in range(times)]
    try:
        servers = Servers(min(at_once, len(tasks)), transport, nics, settings, where)
        with going_first(first), servers:
            _follow(rows, servers.run(tasks, not keep_going), times)
    finally:
        click.echo()
        click.echo(table(list(rows.values())))
        outcomes = [one for row in rows.values() for one in row.outcomes]
        if json_path:
            _save(json_path, **asked, trials=[asdict(one) for one in outcomes])
    bad = sum(not one.expected for one in outcomes)
    click.echo(f"\n{len(outcomes) - bad} of {len(tasks)} trials ended as expected")
    sys.exit(1 if bad or len(outcomes) < len(tasks) else 0)


def _allow_core_files() -> None:
    """Lets a crashing rank write a core file beside its logs."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


if __name__ == "__main__":
    main(prog_name="tools/faults")
