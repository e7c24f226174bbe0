# SPDX-License-Identifier: Apache-2.0
"""tools/test --mutations: breaks each protection on purpose; its tests must fail."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from importlib.util import find_spec
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Optional

import click
from mutations import Mutation, MutationError, read_all
from workbench import BROKEN, CAUGHT, SURVIVED, Stopped, Verdict, Workbench

from tools.hosts import lab

PREFIX = "harp-mutations-"
ENDS = (signal.SIGTERM, signal.SIGHUP)  # as Ctrl-C; a closed terminal sends SIGHUP


def chosen(names: Sequence[str]) -> list[Mutation]:
    """The mutations with these names or in these lists. Without names all, but those whose optional
    module is absent."""
    everything = list(read_all())
    known = {mutation.name for mutation in everything} | {one.area for one in everything}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise MutationError(f"no such mutation or list: {', '.join(unknown)}")
    if names:
        return [one for one in everything if one.name in names or one.area in names]
    absent = {one.needs for one in everything if one.needs and not find_spec(one.needs)}
    for module in sorted(absent):
        count = sum(one.needs == module for one in everything)
        click.echo(f"{count} mutations are left out: there is no Python module {module} here")
    return [one for one in everything if one.needs not in absent]


def in_groups(mutations: Sequence[Mutation]) -> Iterator[list[Mutation]]:
    """Groups of mutations of one list and file, so that little is recompiled in between."""
    where = attrgetter("area", "file")
    for _, group in groupby(sorted(mutations, key=where), where):
        yield list(group)


class Run:
    """A run of mutations: several threads take groups, each for its copy of the tree."""

    def __init__(self, mutations: Sequence[Mutation], copies: Sequence[Path]) -> None:
        self.verdicts: list[Verdict] = []
        self.outputs: list[str] = []  # of tests that fail without a mutation
        self.stopped = False
        self._benches = [Workbench(folder) for folder in copies]
        self._groups = deque(in_groups(mutations))
        self._total = len(mutations)
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def stop(self) -> None:
        """Ends the running commands within seconds, and starts no more."""
        self.stopped = True
        for bench in self._benches:
            bench.stop()

    def add(self, verdict: Verdict) -> None:
        with self._lock:
            self.verdicts.append(verdict)
            count, name = f"{len(self.verdicts)}/{self._total}", verdict.mutation.name
            click.echo(f"{count} {verdict.what:8} {name} ({verdict.seconds:.0f} s): {verdict.how}")

    def work(self) -> Optional[str]:
        """Tries all mutations. Returns the failure if a copy cannot be built, else None."""
        futures: list[Future[Optional[str]]] = []
        with ThreadPoolExecutor(len(self._benches)) as pool:
            try:
                futures += [pool.submit(self._work_at, bench) for bench in self._benches]
                wait(futures)
            except KeyboardInterrupt:
                for number in (signal.SIGINT, *ENDS):
                    signal.signal(number, signal.SIG_IGN)
                self.stop()
        failed = [failure for future in futures if (failure := future.result())]
        return failed[0] if failed else None

    def _work_at(self, bench: Workbench) -> Optional[str]:
        passing: dict[str, bool] = {}  # whether a test passes without a mutation
        try:
            bench.set_up()
            while group := self._next():
                tests = {test for one in group for test in one.caught_by} - set(passing)
                broken = bench.missing(tests) if tests else {}
                passing.update((test, test not in broken) for test in tests)
                self.outputs += broken.values()
                for mutation in group:
                    self.add(self._try(bench, mutation, passing))
        except MutationError as error:
            return str(error)
        except Stopped:
            pass
        return None

    def _next(self) -> Optional[list[Mutation]]:
        with self._lock:
            return self._groups.popleft() if self._groups else None

    @staticmethod
    def _try(bench: Workbench, mutation: Mutation, passing: dict[str, bool]) -> Verdict:
        already = [test for test in mutation.caught_by if not passing[test]]
        if already:
            how = f"fails or is skipped while nothing is broken: {', '.join(already)}"
            return Verdict(mutation, BROKEN, how, 0)
        return bench.attempt(mutation)

    def pace(self) -> str:
        minutes = (time.monotonic() - self._began) / 60
        return (f"{len(self.verdicts)} of {self._total} mutations in {minutes:.1f} min, "
                f"{len(self.verdicts) / minutes:.1f} a minute, "
                f"in {len(self._benches)} copies of the tree")  # fmt: skip

    def table(self) -> str:
        rows = Counter((verdict.mutation.area, verdict.what) for verdict in self.verdicts)
        areas = sorted({area for area, _ in rows})
        lines = [f"{'list':16} {CAUGHT:>8} {SURVIVED:>8} {BROKEN:>8}"]
        for area in areas:
            counts = [rows[area, what] for what in (CAUGHT, SURVIVED, BROKEN)]
            lines.append(f"{area:16} " + " ".join(f"{count:8}" for count in counts))
        return "\n".join(lines)

    @property
    def bad(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.what != CAUGHT]


def sweep() -> None:
    """Removes the folders of killed runs."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name[len(PREFIX) :].partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--list", "only_list", is_flag=True, help="Print the mutations and their tests.")
@click.option("--jobs", type=click.IntRange(1, 64), default=len(os.sched_getaffinity(0)),
              show_default="one for each core",
              help="Number of copies of the tree that are tested in parallel.")  # fmt: skip
@click.argument("names", nargs=-1, metavar="[NAME|LIST]...")
def main(only_list: bool, jobs: int, names: tuple[str, ...]) -> None:
    """Break one line after another, and check that its tests fail. NAMES: default all.

    Works on copies of the tree in the folder of temporary files, never on the tree itself.

    Exit: 0 all were caught, 1 one survived or could not be tried, 2 wrong usage, 130 interrupted.
    """
    try:
        mutations = chosen(names)
    except MutationError as error:
        raise click.UsageError(str(error)) from None
    if only_list:
        for one in mutations:
            click.echo(f"{one.area}/{one.name}: {one.why} [{', '.join(one.caught_by)}]")
        return
    for number in ENDS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    sweep()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as folder:
        os.chmod(folder, 0o755)  # tests run programs of the copies as other users
        run = Run(mutations, [Path(folder, str(number)) for number in range(jobs)])
        failure = run.work()
    lab.clean()  # removes the hosts of killed tests
    for output in run.outputs[:1]:
        click.echo(output, err=True)
    click.echo(f"\n{run.table()}\n\n{run.pace()}")
    for verdict in run.bad:
        click.echo(f"{verdict.what}: {verdict.mutation.name}: {verdict.how}")
    if failure:
        click.echo(failure, err=True)
    if run.stopped:
        sys.exit(130)
    sys.exit(1 if failure or run.bad else 0)


if __name__ == "__main__":
    main()
