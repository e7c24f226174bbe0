# SPDX-License-Identifier: Apache-2.0
"""tools/test --mutations: each protection is broken on purpose, and its tests have to fail."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Optional

import click
from mutations import Mutation, MutationError, read_all
from workbench import BROKEN, CAUGHT, SURVIVED, Verdict, Workbench


def chosen(names: Sequence[str]) -> list[Mutation]:
    """The mutations of these names or lists; of none: all."""
    everything = list(read_all())
    known = {mutation.name for mutation in everything} | {one.area for one in everything}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise MutationError(f"no such mutation or list: {', '.join(unknown)}")
    return [one for one in everything if not names or one.name in names or one.area in names]


def share(mutations: Sequence[Mutation], count: int) -> list[list[Mutation]]:
    """In parts of about the same length; neighbours touch the same file, which compiles once."""
    ordered = sorted(mutations, key=lambda one: (one.area, one.file))
    length = -(-len(ordered) // count)
    return [ordered[i:i + length] for i in range(0, len(ordered), length)]  # fmt: skip


class Run:
    """Mutations under way: verdicts come in from several threads."""

    def __init__(self, total: int) -> None:
        self.verdicts: list[Verdict] = []
        self.outputs: list[str] = []  # of tests that fail while nothing is broken
        self.stopped = threading.Event()  # after what is under way
        self._total = total
        self._lock = threading.Lock()

    def add(self, verdict: Verdict) -> None:
        with self._lock:
            self.verdicts.append(verdict)
            count, name = f"{len(self.verdicts)}/{self._total}", verdict.mutation.name
            click.echo(f"{count} {verdict.what:8} {name} ({verdict.seconds:.0f} s): {verdict.how}")

    def try_all(self, folder: Path, mutations: Sequence[Mutation]) -> None:
        """One copy's share. MutationError: the copy cannot be built."""
        bench = Workbench(folder)
        tests = [test for mutation in mutations for test in mutation.caught_by]
        bench.set_up()
        broken = bench.missing(tests)
        self.outputs += broken.values()
        for mutation in mutations:
            if self.stopped.is_set():
                return
            already = [test for test in mutation.caught_by if test in broken]
            if already:
                how = f"fails or is skipped while nothing is broken: {', '.join(already)}"
                self.add(Verdict(mutation, BROKEN, how, 0))
            else:
                self.add(bench.attempt(mutation))

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


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--list", "only_list", is_flag=True, help="Print the mutations and their tests.")
@click.option("--jobs", type=click.IntRange(1, 16), default=2, show_default=True,
              help="Copies of the tree that are built and tried side by side.")  # fmt: skip
@click.argument("names", nargs=-1, metavar="[NAME|LIST]...")
def main(only_list: bool, jobs: int, names: tuple[str, ...]) -> None:
    """Break one line after another, and see the named tests fail; without names, all.

    Works on copies of the tree below the folder for temporary files, never on the tree itself.

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
    run = Run(len(mutations))
    failure: Optional[MutationError] = None
    with tempfile.TemporaryDirectory(prefix="harp-mutations-") as folder:
        with ThreadPoolExecutor(jobs) as pool:
            parts = [pool.submit(run.try_all, Path(folder) / str(i), part)
                     for i, part in enumerate(share(mutations, jobs))]  # fmt: skip
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            for part in parts:
                try:
                    part.result()
                except MutationError as error:
                    failure = error
                except KeyboardInterrupt:
                    run.stopped.set()
    for output in run.outputs[:1]:
        click.echo(output, err=True)
    click.echo(f"\n{run.table()}\n")
    for verdict in run.bad:
        click.echo(f"{verdict.what}: {verdict.mutation.name}: {verdict.how}")
    if failure:
        click.echo(str(failure), err=True)
    if run.stopped.is_set():
        sys.exit(130)
    sys.exit(1 if failure or run.bad else 0)


if __name__ == "__main__":
    main()
