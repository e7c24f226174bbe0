# SPDX-License-Identifier: Apache-2.0
"""`harp check`: the hosts of a job test themselves and their network, before the job."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Optional

import click

from harp.check import facts, html, launcher, report
from harp.check.progress import Progress
from harp.check.rendezvous import Rendezvous, RendezvousError
from harp.check.run import Check
from harp.cli.perf import Rendezvous as RendezvousType

GOOD, FINDINGS = 0, 1


def _end_now(rank: int, why: str) -> NoReturn:
    """Says why this rank ends, and ends the process, whatever its other threads wait for. The
    plugin removes its statistics in a handler of atexit(3), so this is C's exit."""
    sys.stderr.write(f"harp check: rank {rank}: {why}\n")
    sys.stderr.flush()
    ctypes.CDLL(None).exit(FINDINGS)
    raise AssertionError("exit(3) returns")


def _end_in(seconds: float, rank: int) -> threading.Timer:
    """Ends this process after that time, unless the timer is cancelled before."""
    why = (
        f"not done within {seconds:.0f} s (--timeout); see the other ranks' messages, and the "
        "phase above"
    )
    timer = threading.Timer(seconds, _end_now, (rank, why))
    timer.daemon = True
    timer.start()
    return timer


def _end_on_signals(rendezvous: Rendezvous, timer: threading.Timer) -> None:
    """Ends this process on Ctrl-C, on SIGTERM, which launchers send, and on SIGHUP. An ignored
    signal stays ignored. An exception is no way to end: ctypes drops it if the signal comes while
    the plugin logs a line."""

    def end(number: int, _: Optional[FrameType]) -> None:
        timer.cancel()
        rendezvous.close()
        _end_now(rendezvous.place.rank, f"ended by {signal.Signals(number).name}")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def _write(path: Optional[str], text: str) -> None:
    if not path:
        return
    try:
        with click.open_file(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as failure:
        raise click.ClickException(f"{path}: {failure.strerror}; the report is above") from failure


def _report(done: Check, json_file: Optional[str], html_file: Optional[str]) -> None:
    found = report.as_dict(done.outcome)
    if json_file != "-":
        click.echo("\n".join(report.text(found)))
    _write(json_file, json.dumps(found, indent=1) + "\n")
    _write(html_file, html.page(found))


def _place(options: dict[str, Any]) -> launcher.Place:
    try:
        return launcher.find(
            options["rank"], options["ranks"], options["rendezvous"], os.environ
        )  # fmt: skip
    except launcher.Unknown as unknown:
        raise click.UsageError(str(unknown)) from unknown


@click.command()
@click.option(
    "--rank", type=click.IntRange(0), help="This rank [from mpirun, torchrun or srun]."
)  # fmt: skip
@click.option("--ranks", "--nranks", type=click.IntRange(2), help="The number of ranks.")
@click.option(
    "--rendezvous", type=RendezvousType(), help="Rank 0's listening address, or unix:PATH."
)  # fmt: skip
@click.option(
    "--wait",
    type=click.IntRange(1, 3600),
    default=30,
    metavar="SECONDS",
    help="Longest wait for all ranks to come [30].",
)
@click.option(
    "--timeout",
    type=click.IntRange(1, 3600),
    default=180,
    metavar="SECONDS",
    help="Every rank ends within this time after the wait [180].",
)
@click.option("--quick", is_flag=True, help="Do not measure the pairs.")
@click.option(
    "--plugin",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="A libnccl-net.so of HARP's [the one that NCCL would load, else this package's].",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Rank 0's file for the report (harp.check/1); - is standard output.",
)
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Rank 0's file for a page with heat maps.",
)
def check(**options: Any) -> None:
    """Test the hosts of a job and the network between them, before the job.

    Start it instead of the job: mpirun ... harp check, torchrun --no-python ...
    harp check, or srun ... harp check. Without a launcher, start it on every host
    with its --rank, the same --ranks and the same --rendezvous.

    Each rank does what harp doctor does. Then all ranks compare their hosts, look for
    duplicate addresses, firewalls and the path MTU, and measure every pair through
    the plugin: one pair at a time, then all at once. Rank 0 prints the report.

    Exit: 0 no fault, 1 a fault or a missing rank, 2 wrong usage.
    """
    place = _place(options)
    timer = _end_in(options["wait"] + options["timeout"], place.rank)
    progress = Progress(silent=place.rank != 0)
    rendezvous = Rendezvous(place)
    _end_on_signals(rendezvous, timer)
    plugin = Path(options["plugin"]) if options["plugin"] else None
    done = Check(rendezvous, plugin, options["quick"], progress)
    try:
        rendezvous.open(
            options["wait"],
            lambda come: progress.say("waiting for ranks", f"{come} of {place.ranks}"),
        )
        good = done.run()
        progress.end()
        if rendezvous.leads:
            _report(done, options["json_file"], options["html_file"])
        elif not good and done.speaks:
            click.echo(
                f"harp check: faults: see the report of rank 0 at {rendezvous.where}", err=True
            )
    except RendezvousError as failure:
        progress.end()
        for line in facts.troubles():
            click.echo(f"rank {place.rank}: this host: {line}", err=True)
        raise click.ClickException(f"rank {place.rank}: {failure}") from failure
    finally:
        done.close()
        rendezvous.close()
        timer.cancel()
    sys.exit(GOOD if good else FINDINGS)
