# SPDX-License-Identifier: Apache-2.0
"""The benchmark: HARP and the kernel's TCP on the same wire, in interleaved pairs.

On each wire, both sides first try their settings and keep the best for each message size. They are
then measured in pairs, so that a slow machine slows both. Figures are medians with their range; a
ratio is the median of the pairs' ratios. A full run also measures iperf3 and the raw speed of the
port in each pair.

On links of shared memory (tools/measure/shared.py), both directions of HARP are compared with the
kernel's TCP on the most similar veth.

bench_plan.py has the rows and targets, bench_run.py measures them, bench_cells.py keeps the
records, and bench_output.py has the table and the document.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Optional

import click

from tools.measure import copies, instructions, nics, real_nccl
from tools.measure.bench_cells import judge
from tools.measure.bench_output import extra, table, verdict
from tools.measure.bench_plan import FULL, QUICK, Plan
from tools.measure.bench_run import Bench, minutes
from tools.measure.options import json_option
from tools.measure.records import Document
from tools.measure.verdicts import show_verdicts

BUSY = 0.2  # of the cores: with more other load, CPU figures of a run mean nothing


# A measurement lacks a program, a file or a right. The text says which.
CANNOT = (instructions.CannotCount, copies.CannotCopy, real_nccl.NoNccl)


def _count(json_path: Optional[Path]) -> int:
    """Counts instructions. Returns the exit status."""
    rows = instructions.rows()
    click.echo(f"\n{instructions.table(rows)}\n")
    click.echo("Instructions; bursts of 32 segments of 1448 bytes, without checksums and copies.\n")
    slower = instructions.slowdown()
    verdicts = instructions.verdicts(rows) + instructions.flow_verdicts(rows, slower)
    show_verdicts(verdicts)
    if json_path:
        document = {
            "schema": "harp.instructions/1",
            "rows": [asdict(row) for row in rows],
            "targets": [asdict(one) for one in verdicts],
            "slowdown": slower,
        }
        json_path.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _nics(quick: bool, mbit: int, json_path: Optional[Path], say: Callable[[str], None]) -> int:
    """Measures hosts with several NICs. Returns the exit status: 1 if a run failed."""
    plan = nics.Plan(3, 2, 2.0, mbit) if quick else nics.Plan(7, nics.NICS, 4.0, mbit)
    found = nics.Bench(plan, say).run()
    click.echo(f"\n{nics.rates_table(found)}\n\n{nics.outages_table(found)}\n")
    for remark in nics.remarks(found):
        click.echo(f"{remark}\n")
    show_verdicts(nics.verdicts(found))
    if json_path:
        nics.save(found, json_path)
    return 1 if found.failures else 0


def _copy(json_path: Optional[Path]) -> int:
    """Measures copies. Returns the exit status."""
    found = copies.measure()
    click.echo(f"\n{copies.table(found)}\n\n{copies.remark(found)}\n")
    if json_path:
        copies.save(found, json_path)
    return 0


def _nccl(
    folder: Path, pairs: Optional[int], json_path: Optional[Path], say: Callable[[str], None]
) -> int:
    """Measures NCCL's own collectives. Returns the exit status: 1 if a run failed."""
    pairs = pairs or QUICK.pairs
    say(f"{pairs} pairs: about {pairs * 15} seconds on an idle machine")
    found = real_nccl.measure(folder, pairs, say)
    click.echo(f"\n{real_nccl.table(found)}\n")
    show_verdicts(real_nccl.verdicts(found))
    if json_path:
        real_nccl.save(found, json_path)
    return 1 if found.failures else 0


def _compare(
    plan: Plan,
    baseline: Optional[Path],
    json_path: Optional[Path],
    say: Callable[[str], None],
) -> int:
    """Measures a plan. Returns the exit status: 1 if a run failed."""
    say(f"rows: {len(plan.rows)}, pairs of each: {plan.pairs}; about {_duration(plan)}")
    bench = Bench(plan, say, baseline)
    bench.run()
    judged = judge(bench.cells, plan.targets)
    click.echo(f"\n{table(bench.cells)}\n")
    click.echo(
        f"Medians of {plan.pairs} interleaved pairs (lowest–highest). CPU: of the whole machine.\n"
    )
    if bench.load > BUSY:
        click.echo(
            f"Other work used {bench.load:.0%} of the machine's cores: the figures are unreliable, "
            "and those of CPU mean nothing.\n"
        )
    show_verdicts([verdict(one) for one in judged])
    for failure in bench.failures:
        click.echo(f"FAIL {failure.splitlines()[0]}", err=True)
    if json_path:
        name = str(baseline) if baseline else None
        more = extra(bench.load, bench.cells, judged, bench.failures, name)
        Document(records=bench.records, extra=more).save(json_path)
    return 1 if bench.failures else 0


def _duration(plan: Plan) -> str:
    count = max(1, round(minutes(plan)))
    return f"{count} minute{'s' if count > 1 else ''}"


def _limited(plan: Plan, only: Sequence[str], pairs: Optional[int]) -> Plan:
    """Raises UsageError if a pattern matches no row."""
    for pattern in only:
        if not any(row.matches(pattern) for row in plan.rows):
            raise click.BadParameter(
                f"no row matches {pattern!r}; --list prints all", param_hint="--only"
            )
    return plan.limited(only, pairs)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--quick",
    is_flag=True,
    help="Measure only the rows with targets, in short runs without iperf3 and raw ports: "
    f"about {minutes(QUICK):.0f} minutes instead of {minutes(FULL):.0f}.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="ROWS",
    help="Measure only the rows whose names have these words, like 'veth-1500 sendrecv 64K'. "
    "Words may have * and ?. May be given several times.",
)
@click.option("--pairs", type=click.IntRange(1), metavar="N", help="Measure N pairs of each row.")
@click.option(
    "--list", "listed", is_flag=True, help="Only print the rows' names, and how long they take."
)
@click.option(
    "--baseline",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path),
    metavar="FILE",
    help="Compare with this libnccl-net*.so instead of the reference plugin over kernel TCP.",
)
@json_option("all records and targets")
@click.option(
    "--instructions",
    "counted",
    is_flag=True,
    help="Only count the stack's instructions for a segment with callgrind: about a minute.",
)
@click.option(
    "--copy",
    "copied",
    is_flag=True,
    help="Only measure how fast this machine copies, by the distance of source and destination "
    "modulo the page size: a few seconds.",
)
@click.option(
    "--nccl",
    "nccl_folder",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    metavar="FOLDER",
    help="Only measure the collectives of a build of NCCL that needs no GPU, over HARP and over "
    "NCCL's sockets. docs/measure.md says what FOLDER has to hold.",
)
@click.option(
    "--nics",
    "several",
    is_flag=True,
    help="Only measure two hosts with four NICs each: the rate over all NICs against one, and the "
    "loss of one NIC. About five minutes, with --quick two.",
)
@click.option(
    "--nic-rate",
    default=1000,
    show_default=True,
    type=click.IntRange(10, 100000),
    metavar="MBIT",
    help="With --nics: the rate that each NIC is held to, Mbit/s.",
)
def main(
    quick: bool,
    only: tuple[str, ...],
    pairs: Optional[int],
    listed: bool,
    baseline: Optional[Path],
    json_path: Optional[Path],
    counted: bool,
    copied: bool,
    nccl_folder: Optional[Path],
    several: bool,
    nic_rate: int,
) -> None:
    """Compare HARP with the kernel's TCP, in interleaved pairs on the same wires.

    Exit: 0 if every run succeeded, whether or not it met its target; 1 if one failed
    or moved wrong bytes; 2 on wrong usage.
    """
    start = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - start:4.0f} s] {text}", err=True)

    plan = _limited(QUICK if quick else FULL, only, pairs)
    try:
        if counted:
            sys.exit(_count(json_path))
        if copied:
            sys.exit(_copy(json_path))
        if nccl_folder:
            sys.exit(_nccl(nccl_folder, pairs, json_path, say))
    except CANNOT as error:
        click.echo(f"bench: {error}", err=True)
        sys.exit(1)
    if several:
        sys.exit(_nics(quick, nic_rate, json_path, say))
    if listed:
        click.echo("\n".join(row.name for row in plan.rows))
        click.echo(f"about {_duration(plan)}", err=True)
        return
    sys.exit(_compare(plan, baseline, json_path, say))


if __name__ == "__main__":
    main(prog_name="tools/bench")
