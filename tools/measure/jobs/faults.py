# SPDX-License-Identifier: Apache-2.0
"""tools/jobs faults: a fault strikes a rank of a DDP job, which goes on or raises on every rank."""

from __future__ import annotations

import random
import re
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Optional

import click

from tools.hosts.lab import Lab
from tools.hosts.ports import random_port
from tools.hosts.ranks import START_S
from tools.hosts.torch_job import TorchRank, sites, torch_job
from tools.measure.fault_trials import (
    CRASH,
    END_S,
    ERROR,
    HANG,
    HANG_S,
    OTHER,
    WENT_ON,
    WRONG,
    Misbehaved,
)
from tools.measure.jobs import hosts as lab_hosts
from tools.measure.jobs.forks import Forks
from tools.measure.options import json_option
from tools.measure.tables import markdown

TIMEOUT_S = 3.0
DELAY_S = 0.3  # the longest random delay before a fault
SLACK_S = 1.0  # beyond the timeout: the job computes before its next call, on a busy machine
LONG_S = 1.5  # beyond the timeout: a fault that the job cannot survive
REMEDIES = ("restart the job", "a longer timeout")  # what an exception of harp.torch advises
PEER = re.compile(r"\brank (\d+) on \S")  # another rank, which an exception names with its host
GOES_ON_S = 0.5  # a job that survived trains for this long after the fault


def other_ranks(text: str, number: int) -> set[int]:
    """The ranks that an exception of rank `number` names with their hosts."""
    return {int(peer) for peer in PEER.findall(text)} - {number}


class Trial(Forks):
    """A running job with its fault.

    draw: random choices. killed: the ranks that need not end well.
    """

    def __init__(
        self, ranks: Sequence[TorchRank], lab: Lab, draw: random.Random, timeout_s: float
    ) -> None:
        super().__init__(ranks, lab.hosts[0].address, random_port())
        self.lab, self.draw, self.timeout_s = lab, draw, timeout_s
        self.victim = draw.randrange(len(ranks))
        self.killed: list[int] = []
        self.errors: list[float] = []  # seconds from a fault to each exception

    def trains(self) -> None:
        for number in range(len(self.ranks)):
            self.wait_for(number, "training", 2 * START_S)
        time.sleep(self.draw.uniform(0, DELAY_S))

    def fails(self, number: int, since: float) -> set[int]:
        """Checks that a rank's exception comes in time, and that it names the rank, another one
        with its host, and the remedy. Returns the other ranks."""
        end = self.wait_for(number, "end", self.timeout_s + HANG_S)
        if end["end"] != ERROR:
            raise Misbehaved(OTHER, f"rank {number} has no exception: {end}")
        took = end["at"] - since
        self.errors.append(took)
        text = end["text"]
        if took > self.timeout_s + SLACK_S:
            raise Misbehaved(OTHER, f"rank {number}: its exception came after {took:.2f} s: {text}")
        others = other_ranks(text, number)
        if f"of rank {number}" not in text or not others:
            raise Misbehaved(OTHER, f"rank {number}: it does not name two ranks: {text}")
        if not any(remedy in text for remedy in REMEDIES):
            raise Misbehaved(OTHER, f"rank {number}: no remedy: {text}")
        return others

    def others_fail(self, since: float) -> set[int]:
        """Checks this of all ranks but the victim. Returns the ranks that they name."""
        named: set[int] = set()
        for number in range(len(self.ranks)):
            if number != self.victim:
                named |= self.fails(number, since)
        return named

    def goes_on(self) -> None:
        """Lets the job train on, ends it, and checks its parameters."""
        time.sleep(GOES_ON_S)
        self.send(0, signal.SIGUSR2)
        for number in range(len(self.ranks)):
            end = self.wait_for(number, "end", self.timeout_s + HANG_S)
            if end["end"] != WENT_ON:
                raise Misbehaved(OTHER, f"rank {number}: {end}")
            if not end["same"]:
                raise Misbehaved(WRONG, f"rank {number} has other parameters than rank 0")

    def ends(self) -> None:
        """Checks that each rank's process ends by itself, unless the fault killed it."""
        for number in range(len(self.ranks)):
            status = self.wait_for(number, "status", END_S)["status"]
            if number in self.killed:
                continue
            if status:
                kind = CRASH if status < 0 else OTHER
                raise Misbehaved(kind, f"rank {number} ended with {status}")


def kill(trial: Trial) -> None:
    trial.killed.append(trial.victim)
    named = trial.others_fail(trial.send(trial.victim, signal.SIGKILL))
    # A rank may name one that failed before it, but the first to fail has nobody else to name.
    if trial.victim not in named:
        raise Misbehaved(OTHER, f"no exception names rank {trial.victim}, which was killed")


def stop(trial: Trial) -> None:
    """The stopped rank raises once it continues: the other ranks have given up meanwhile."""
    trial.others_fail(trial.send(trial.victim, signal.SIGSTOP))
    trial.fails(trial.victim, trial.send(trial.victim, signal.SIGCONT))


def stop_short(trial: Trial) -> None:
    trial.send(trial.victim, signal.SIGSTOP)
    time.sleep(trial.draw.uniform(0.1, 0.5) * trial.timeout_s)
    trial.send(trial.victim, signal.SIGCONT)
    trial.goes_on()


def _link_down(trial: Trial, seconds: float) -> float:
    """Returns the time at which the link went down."""
    host = trial.lab.hosts[trial.victim]
    try:
        since = time.monotonic()
        host.set_link(False)
        time.sleep(seconds)
    finally:
        host.set_link(True)
        trial.lab.await_links()
    return since


def link(trial: Trial) -> None:
    since = _link_down(trial, trial.timeout_s + LONG_S)
    for number in range(len(trial.ranks)):
        trial.fails(number, since)


def link_short(trial: Trial) -> None:
    _link_down(trial, trial.draw.uniform(0.1, 0.5) * trial.timeout_s)
    trial.goes_on()


def slow(trial: Trial) -> None:
    trial.send(trial.victim, signal.SIGUSR1)
    trial.goes_on()


@dataclass(frozen=True)
class Fault:
    """What strikes a rank, and the required end. Times are random where a fault is short."""

    name: str
    what: str
    ends: str
    strike: Callable[[Trial], None]


FAULTS = (
    Fault("kill", "a rank is killed by SIGKILL", ERROR, kill),
    Fault("stop", "a rank is stopped for longer than the timeout", ERROR, stop),
    Fault("stop-short", "a rank is stopped for up to half of the timeout", WENT_ON, stop_short),
    Fault("link", "a host's link is down for longer than the timeout", ERROR, link),
    Fault("link-short", "a link is down for up to half of the timeout", WENT_ON, link_short),
    Fault("slow", "a rank computes two steps for 0.6 of the timeout each", WENT_ON, slow),
)
KINDS = (HANG, CRASH, WRONG, OTHER)


@dataclass
class Row:
    """The trials of a fault: how they ended, and the seconds until each exception."""

    fault: Fault
    ends: list[str] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def cells(self) -> list[str]:
        times = self.errors
        seconds = [f"{median(times):.2f}", f"{max(times):.2f}"] if times else ["–", "–"]
        counts = [str(self.ends.count(kind)) for kind in (self.fault.ends, *KINDS)]
        name = f"{self.fault.name}: {self.fault.what}"
        return [name, str(len(self.ends)), self.fault.ends, *counts, *seconds]


def report(rows: Sequence[Row]) -> str:
    header = ["fault", "times", "expected", "as expected", "hangs", "crashes", "wrong parameters",
              "other", "exception after p50 s", "max s"]  # fmt: skip
    numbers = [i for i in range(len(header)) if i not in (0, 2)]
    return markdown(header, [row.cells() for row in rows], numbers)


def run_trial(fault: Fault, trial: Trial) -> tuple[str, str]:
    """How a trial ended: the fault's own end or one of KINDS, and what to say of it."""
    end, text = fault.ends, ""
    try:
        trial.trains()
        fault.strike(trial)
        trial.ends()
    except Misbehaved as bad:
        end, text = bad.kind, str(bad)
    try:
        trial.clear()
    except Misbehaved as left:
        end, text = HANG, f"{text}; {left}" if text else str(left)
    return end, text


@click.command("faults")
@lab_hosts.hosts_option(3)
@click.option("--times", default=50, show_default=True, type=click.IntRange(1),
              help="Trials of each fault.")  # fmt: skip
@click.option("--only", "names", multiple=True, type=click.Choice([one.name for one in FAULTS]),
              help="Only this fault; repeatable.")  # fmt: skip
@click.option("--timeout", "timeout_s", default=TIMEOUT_S, show_default=True,
              type=click.FloatRange(1), help="Seconds of the process group's timeout.")  # fmt: skip
@click.option("--seed", type=int, help="Seed of ranks and times [random, and printed].")
@json_option("the rows")
def faults(
    hosts: int, times: int, names: tuple[str, ...], timeout_s: float, seed: Optional[int],
    json_path: Optional[Path],
) -> None:  # fmt: skip
    """Strike a rank of a DDP job over HARP, many times by each fault.

    The job goes on, or every rank gets an exception, at most a second after the timeout. It names
    the rank, another rank with its host, and the remedy. An exception names the killed rank. The
    exit status is 1 if another end is seen.
    """
    lab_hosts.require("torch")
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    print(f"DDP over HARP, {hosts} hosts, timeout {timeout_s:g} s, seed {seed}", flush=True)
    draw = random.Random(seed)
    rows = [Row(fault) for fault in FAULTS if not names or fault.name in names]
    with lab_hosts.failures_told(), Lab(hosts) as lab, tempfile.TemporaryDirectory() as folder:
        places = sites(Path(folder), lab, hosts)
        with torch_job(places, lab_hosts.PROGRAMS / "faults.py", timeout_s) as ranks:
            for row in rows:
                for number in range(times):
                    trial = Trial(ranks, lab, draw, timeout_s)
                    end, text = run_trial(row.fault, trial)
                    row.ends.append(end)
                    row.errors += trial.errors
                    if text:
                        print(f"{row.fault.name} {number}: {end}: {text}", flush=True)
    print()
    print(report(rows))
    records = [{"fault": row.fault.name, "ends": row.ends, "errors_s": row.errors} for row in rows]
    lab_hosts.save(
        json_path, records, wire=lab.wire.name, hosts=hosts, timeout_s=timeout_s, seed=seed
    )
    bad = sum(end != row.fault.ends for row in rows for end in row.ends)
    if bad:
        raise click.ClickException(f"{bad} trials ended in another way; see the lines above")
