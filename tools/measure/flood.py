# SPDX-License-Identifier: Apache-2.0
"""The command tools/flood: strangers flood a rank while an all-reduce runs.

A third host floods one of two over AF_PACKET; over a wire in shared memory, somebody who sits
between the two does. What the all-reduce loses by that is told by
comparison with the same flood, frame by frame, to an address that nobody owns: its frames
reach the same host by the same way, and only HARP does not take notice of them. The flood
goes to the one and to the other in turn, in phases so short that whatever else the machine
does meets both alike; the job's counters give its rate in each. A second job, which verifies
every byte, runs under every attack on the victim.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional

import click

from tools.hosts.jobs import Job
from tools.hosts.lab import Lab, LabError
from tools.hosts.ranks import TooLate
from tools.measure.flood_rows import Attack, Plan, Row, table
from tools.measure.flood_scene import (
    PATIENCE_S,
    TRANSPORTS,
    FloodError,
    Scene,
    attacks,
    scene,
)
from tools.measure.iperf import idle_load
from tools.measure.options import first_option, json_option
from tools.measure.priority import going_first, precedence
from tools.measure.records import describe_host

SCHEMA = "harp.flood/1"
USUAL = ("tokens", "half-open", "replay", "byte-by-byte")
BUSY = 0.2  # of the cores, with other work
VERIFY_S = 0.5


def measure(where: Scene, row: Row, plan: Plan) -> None:
    """Fills in what the row saw."""
    phase_s, seconds = row.attack.phase_s, plan.flood_s(row.attack)
    resident, strangers = where.resident(), where.counter("strangers")
    began = where.flooder.begin(row.attack, plan.rate, seconds, phase_s)
    with precedence():
        for pair in range(round(seconds / phase_s / 2)):
            begins = began + 2 * pair * phase_s
            victim = where.phase(begins, begins + phase_s)
            nobody = where.phase(begins + phase_s, begins + 2 * phase_s)
            row.grown = max(row.grown, where.resident() - resident)
            if victim and nobody and nobody.rate > 0:
                row.victim.append(victim)
                row.nobody.append(nobody)
    row.report = where.flooder.finish(PATIENCE_S)
    row.strangers = where.counter("strangers") - strangers
    if not row.victim:
        raise FloodError(f"{row.attack.name}: this machine is too busy to measure a single phase")


def verify(where: Scene, attack: Attack, plan: Plan) -> None:
    """A while of the attack on the victim."""
    where.flooder.begin(attack, plan.rate, VERIFY_S)
    where.flooder.finish(VERIFY_S + PATIENCE_S)


def wrong_elements(running: Job) -> int:
    """Ends a verified job by its second rank's death: what the first one saw until then."""
    running.ranks[1].end()
    _, line = running.ranks[0].wait_for_line("had come before that", PATIENCE_S)
    found = re.search(r"(\d+) messages had come before that, with (\d+) wrong", line)
    if not found or int(found[1]) == 0:
        raise FloodError(f"the verified job has verified nothing: {line}")
    return int(found[2])


def run(
    lab: Lab,
    transport: str,
    which: Sequence[Attack],
    plan: Plan,
    more: Sequence[str],
    say: Callable[[str], None],
) -> list[Row]:
    """All rows over this transport. more: options for the verified job."""
    rows = [Row(attack, transport) for attack in which]
    with scene(lab, transport) as where:
        for row in rows:
            measure(where, row, plan)
            say(f"{row.attack.name}, {transport}: {row.ratio.median:.2f} of the rate")
    with scene(lab, transport, "--verified", *more) as where:
        for row in rows:
            verify(where, row.attack, plan)
        wrong = wrong_elements(where.job)
        say(f"{transport}: {wrong} elements wrong under all of these attacks")
    for row in rows:
        row.wrong = wrong
    return rows


# -- what people see


def _list_attacks(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        for attack in attacks().values():
            click.echo(f"{attack.name}: {attack.what}")
        context.exit()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--connections",
    default=100_000,
    show_default=True,
    type=click.IntRange(1),
    help="Of each attack over each transport; less where one takes many frames.",
)
@click.option(
    "--rate",
    default=10_000,
    show_default=True,
    type=click.IntRange(100, 1_000_000),
    help="Frames a second. The flooder shares this machine with the ranks.",
)
@click.option(
    "--attack",
    "names",
    multiple=True,
    metavar="NAME",
    help=f"Only this one; may be repeated.  [default: {', '.join(USUAL)}]",
)
@click.option("--all", "every", is_flag=True, help="Every attack that the flooder knows.")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_attacks,
    help="Name the attacks, and do nothing.",
)
@click.option(
    "--transport",
    "transports",
    multiple=True,
    type=click.Choice(TRANSPORTS),
    help="packet: the victim has the kernel's address; packet-own: one beside it; wire: in "
    "memory, with the flooder in the middle; may be repeated.  [default: all]",
)
@json_option("all rows")
@first_option
@click.option(
    "--inject-wrong", is_flag=True, help="Flip one received byte: shows that it would be noticed."
)
def main(connections: int, rate: int, names: tuple[str, ...], every: bool,
         transports: tuple[str, ...], json_path: Optional[Path],
         first: bool, inject_wrong: bool) -> None:  # fmt: skip
    """Flood a rank with strangers while an all-reduce runs, and see what it loses.

    Exit: 0 if it keeps 0.9 of its rate, its memory is bounded and every byte is right; 1 if
    not, or if something failed; 2 on wrong usage.
    """
    start = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - start:4.0f} s] {text}", err=True)

    try:
        known = attacks()
        unknown = [name for name in names if name not in known]
        if unknown:
            raise click.UsageError(f"--attack {unknown[0]}: there are {', '.join(known)}")
        which = [known[name] for name in (known if every else names or USUAL)]
        plan = Plan(connections, rate)
        more = ["--inject-wrong"] if inject_wrong else []
        rows: list[Row] = []
        load = idle_load()
        with going_first(first), Lab(hosts=3) as lab:
            for transport in transports or TRANSPORTS:
                rows += run(lab, transport, which, plan, more, say)
    except (FloodError, LabError, TooLate, OSError) as error:
        click.echo(f"flood: {error}", err=True)
        sys.exit(1)
    click.echo(f"\n{table(rows)}\n")
    click.echo(
        "Medians of phases of the same flood, to the rank and to nobody in turn. Connections, "
        "answers and strangers are those of the phases on the rank.\n"
    )
    if load > BUSY and not first:
        click.echo(
            f"The machine was busy with other work ({load:.0%} of its cores): the ranks had little "
            "of it, and a flood costs them more of that little. --first lets them run before it.\n"
        )
    faults = [
        f"{row.attack.name}, {row.transport}: {fault}" for row in rows for fault in row.faults()
    ]
    for fault in faults:
        click.echo(f"FAIL {fault}", err=True)
    if json_path:
        document = {
            "schema": SCHEMA,
            "host": describe_host(),
            "own_load": load,
            "rows": [r.as_json() for r in rows],
        }
        json_path.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main(prog_name="tools/flood")
