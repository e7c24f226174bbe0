# SPDX-License-Identifier: Apache-2.0
"""The command tools/flood: unauthenticated peers flood a rank during an all-reduce.

A third host floods one of two over AF_PACKET. On a wire in shared memory, a program between the two
floods. The effect on the all-reduce is measured against the same flood to an unused address: these
frames reach the same host on the same path, but HARP ignores them. The flood alternates between the
victim and the unused address in short phases, so that other work on the machine affects both alike.
The job's counters give its rate in each phase. A second job verifies every byte under every attack
on the victim.
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
    END_S,
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
from tools.measure.runner import has_xdp

SCHEMA = "harp.flood/1"
USUAL = ("tokens", "half-open", "replay", "byte-by-byte")
BUSY = 0.2  # of the cores, with other work
VERIFY_S = 0.5


def measure(where: Scene, row: Row, plan: Plan) -> None:
    """Measures a row and fills it in."""
    phase_s, seconds = row.attack.phase_s, plan.flood_s(row.attack)
    resident, dropped = where.resident(), where.counter("unauthenticated_drops")
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
    row.report = where.flooder.finish(END_S)
    row.unauthenticated = where.counter("unauthenticated_drops") - dropped
    if not row.victim:
        raise FloodError(f"{row.attack.name}: this machine is too busy to measure any phase")


def verify(where: Scene, attack: Attack, plan: Plan) -> None:
    """Attacks the victim for VERIFY_S seconds."""
    where.flooder.begin(attack, plan.rate, VERIFY_S)
    where.flooder.finish(VERIFY_S + END_S)


def wrong_elements(running: Job) -> int:
    """Ends a verified job by killing its second rank. Returns the first one's wrong elements."""
    running.ranks[1].end()
    _, line = running.ranks[0].wait_for_line("had come before that", END_S)
    found = re.search(r"(\d+) messages had come before that, with (\d+) wrong", line)
    if not found or int(found[1]) == 0:
        raise FloodError(f"the verifying job has verified no message: {line}")
    return int(found[2])


def run(
    lab: Lab,
    transport: str,
    which: Sequence[Attack],
    plan: Plan,
    more: Sequence[str],
    say: Callable[[str], None],
) -> list[Row]:
    """Measures all rows over this transport. more: options for the verifying job."""
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


# -- the command


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
    help="Connections of each attack over each transport; fewer if each takes many frames.",
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
    help=f"Only this attack; repeat for more.  [default: {', '.join(USUAL)}]",
)
@click.option("--all", "every", is_flag=True, help="Run every attack of the flooder.")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_attacks,
    help="List the attacks and exit.",
)
@click.option(
    "--transport",
    "transports",
    multiple=True,
    type=click.Choice(TRANSPORTS),
    help="packet, xdp: the victim has the kernel's address; packet-own: HARP's own; wire: in "
    "memory, with the flooder between the ranks. Repeat for more.  [default: all of this build]",
)
@json_option("all rows")
@first_option
@click.option(
    "--inject-wrong", is_flag=True, help="Flip one received byte; the command must then fail."
)
def main(connections: int, rate: int, names: tuple[str, ...], every: bool,
         transports: tuple[str, ...], json_path: Optional[Path],
         first: bool, inject_wrong: bool) -> None:  # fmt: skip
    """Flood a rank with connections of unauthenticated peers during an all-reduce.

    Exit: 0 if it keeps 0.9 of its rate, its memory is bounded and every byte is right; 1 if
    not, or after a failure; 2 on wrong usage.
    """
    start = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - start:4.0f} s] {text}", err=True)

    try:
        known = attacks()
        unknown = [name for name in names if name not in known]
        if unknown:
            raise click.UsageError(f"--attack {unknown[0]}: the attacks are {', '.join(known)}")
        which = [known[name] for name in (known if every else names or USUAL)]
        plan = Plan(connections, rate)
        more = ["--inject-wrong"] if inject_wrong else []
        rows: list[Row] = []
        load = idle_load()
        with going_first(first), Lab(hosts=3) as lab:
            built = [one for one in TRANSPORTS if one != "xdp" or has_xdp()]
            for transport in transports or built:
                rows += run(lab, transport, which, plan, more, say)
    except (FloodError, LabError, TooLate, OSError) as error:
        click.echo(f"flood: {error}", err=True)
        sys.exit(1)
    click.echo(f"\n{table(rows)}\n")
    click.echo(
        "Medians over phases: the same flood goes to the rank and to an unused address in turn. "
        "Connections, answers and unauthenticated peers are those of the phases on the rank.\n"
    )
    if load > BUSY and not first:
        click.echo(
            f"Other work used {load:.0%} of the machine's cores: this makes a flood more costly "
            "for the ranks. Use --first to give the ranks priority.\n"
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
