# SPDX-License-Identifier: Apache-2.0
"""tools/fuzz: fuzzers over everything that others can send or write."""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import fuzzers

NAMES = [*sorted(fuzzers.TARGETS), "readers"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("targets", nargs=-1, type=click.Choice(NAMES))
@click.option("--minutes", default=1.0, show_default=True, help="For each target.")
@click.option("--jobs", default=2, show_default=True, help="Fuzzers that run at once.")
@click.option("--keep", is_flag=True, help="Add what reaches more to the corpora.")
@click.option("--folder", type=click.Path(path_type=Path), help="Corpora and findings; kept.")
def main(
    targets: tuple[str, ...], minutes: float, jobs: int, keep: bool, folder: Path | None
) -> None:
    """Run fuzzers (all, or TARGETS) with the address and undefined-behaviour sanitizers, from
    the kept corpora on. Exit 1 if one of them finds something; where its input lies is said."""
    place = folder or Path(tempfile.mkdtemp(prefix="harp-fuzz-"))
    seconds = max(1, round(60 * minutes))

    def one(name: str) -> fuzzers.Outcome:
        began = time.monotonic()
        target = fuzzers.TARGETS.get(name)
        corpus = fuzzers.unpack(target, place) if target else place
        if target:
            outcome = fuzzers.fuzz(target, corpus, seconds)
        else:
            outcome = fuzzers.fuzz_readers(seconds, int(began))
        click.echo(
            f"{name}: {outcome.executions:,} executions in "
            f"{time.monotonic() - began:.0f} s, {'a finding' if outcome.finding else 'nothing'}"
        )
        if keep and target and not outcome.finding:
            click.echo(f"{name}: {fuzzers.keep(target, corpus)} inputs are kept")
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(one, targets or NAMES))
    for outcome in outcomes:
        if outcome.finding:
            click.echo(f"\n{outcome.target}, its input lies in {place}:\n{outcome.finding}")
    click.echo(f"{sum(outcome.executions for outcome in outcomes):,} executions in total")
    sys.exit(1 if any(outcome.finding for outcome in outcomes) else 0)


if __name__ == "__main__":
    main(prog_name="tools/fuzz")
