# SPDX-License-Identifier: Apache-2.0
"""tools/sim: many stacks in virtual time, over bad networks."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Optional

import click
import golden
from simulator import SCENARIOS, Result, SimError, Total, replay, run, run_seeds

from harp.testing.capture_reader import read_tcp
from harp.testing.time_sequence import draw


def _print(result: Result) -> None:
    row = ", ".join(f"{key} {value:,}" for key, value in result.row().items())
    click.echo(f"{result.bytes:,} bytes, {result.connections:,} connections closed: {row}")
    if result.steps:
        steps = result.steps
        click.echo(
            f"{steps['count']:,} steps: median {steps['median_ns'] / 1e3:,.0f} µs, 99th percentile "
            f"{steps['p99_ns'] / 1e3:,.0f} µs, longest {steps['max_ns'] / 1e3:,.0f} µs"
        )


def _many(first: int, count: int, jobs: int) -> bool:
    total, began = Total(), time.monotonic()
    for result in run_seeds(first, count, jobs):
        total.add(result)
        if result.violation:
            click.echo(f"seed {result.seed}: {result.violation}", err=True)
            click.echo(f"  repeat it: tools/sim --seed {result.seed} --capture FILE", err=True)
        if total.runs % 100 == 0:
            click.echo(f"{total.runs} of {count} seeds, {total.bytes:,} bytes", err=True)
    click.echo(
        f"{total.runs:,} seeds from {first} in {time.monotonic() - began:.0f} s: "
        f"{total.connections:,} connections, {total.bytes:,} bytes verified, "
        f"{total.frames:,} frames; {len(total.broken)} violations\n"
    )
    click.echo(total.table())
    for kind in total.unseen():
        click.echo(f"did not occur: {kind}; run more seeds", err=True)
    return not total.broken


def _golden(update: bool) -> bool:
    before = golden.read() if golden.FILE.is_file() else {}
    after = {}
    good = True
    for name in SCENARIOS:
        runs = golden.results(name)
        after[name] = golden.row_of(runs)
        for result in runs:
            if result.violation:
                click.echo(f"{name}: {result.violation}", err=True)
                good = False
        for change in golden.changes(name, before.get(name, {}), after[name]):
            click.echo(str(change))
            good = good and update
        if name not in before:
            click.echo(f"{name}: new")
    if update:
        golden.write(after)
        click.echo(f"written: {golden.FILE}")
    return good


def _single(result: Result, capture: Optional[Path], picture: Optional[Path]) -> bool:
    _print(result)
    if picture and capture:
        picture.write_text(draw(read_tcp(capture), title=result.spec))
    if result.violation:
        click.echo(f"seed {result.seed}: {result.violation}", err=True)
    return result.violation is None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--seeds", type=click.IntRange(1), help="Run this number of seeds, with all kinds of faults."
)
@click.option(
    "--first", type=click.IntRange(0), default=1, show_default=True, help="First seed of --seeds."
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Number of processes for --seeds.",
)
@click.option("--seed", type=click.IntRange(0), help="Run the scenario of one seed again.")
@click.option("--scenario", help="Run one scenario, by its name or as key=value,... .")
@click.option("--capture", type=click.Path(path_type=Path), help="Write its frames as pcapng.")
@click.option("--picture", type=click.Path(path_type=Path),
              help="Draw its largest flow's time-sequence graph; needs --capture.")  # fmt: skip
@click.option(
    "--golden", "compare", is_flag=True, help="Compare all scenarios with the golden table."
)
@click.option("--write", is_flag=True, help="With --golden: write the new values to the table.")
@click.option("--list", "names", is_flag=True, help="Print the scenarios.")
def main(
    seeds: Optional[int],
    first: int,
    jobs: int,
    seed: Optional[int],
    scenario: Optional[str],
    capture: Optional[Path],
    picture: Optional[Path],
    compare: bool,
    write: bool,
    names: bool,
) -> None:
    """Run many stacks in virtual time, over links with rates, queues and faults; verify every byte.

    Exit: 0 success, 1 a rule was broken or a golden value has changed, 2 wrong usage.
    """
    if sum([seeds is not None, seed is not None, scenario is not None, compare, names]) != 1:
        raise click.UsageError("give one of --seeds, --seed, --scenario, --golden and --list")
    if picture and not capture:
        raise click.UsageError("--picture needs a capture: add --capture FILE")
    if write and not compare:
        raise click.UsageError("--write needs --golden")
    try:
        if names:
            good = True
            for name, steps in SCENARIOS.items():
                click.echo(f"{name}: {steps}")
        elif seeds is not None:
            good = _many(first, seeds, jobs)
        elif compare:
            good = _golden(write)
        elif seed is not None:
            good = _single(replay(seed, capture), capture, picture)
        else:
            good = _single(run(str(scenario), capture), capture, picture)
    except SimError as error:
        raise click.ClickException(str(error)) from None
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main(prog_name="tools/sim")
