# SPDX-License-Identifier: Apache-2.0
"""Fairness: two flows share the relay's rate and queue, and the share of each is measured."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Optional

import click

from tools.hosts.conversations import Conversation, Load, OneWay
from tools.hosts.lab import Lab, LabError
from tools.hosts.relay import RelaySpec
from tools.measure.stats import increase, summarize
from tools.measure.tables import markdown
from tools.measure.verdicts import Verdict, show_verdicts

# Whether both ends of the first and of the second flow are HARP's.
MIXES = {
    "two of Linux": (False, False),
    "two of HARP": (True, True),
    "HARP beside Linux": (True, False),
}
RTTS_MS = (0.2, 2.0)
LONGER = 10  # times longer than a run with one flow: two flows need time to converge
LEAST_S = 0.2  # the least time in which both flows must run
END_S = 20.0
APART = 0.8  # the least ratio of the slower to the faster of two HARP flows
SHARE = (0.7, 1.5)  # the allowed share of HARP beside Linux; 1 is fair


@dataclass
class Row:
    """shares: the first flow's share in each run, 1 is fair. rates: of both flows together, in 10^6
    bytes/s."""

    rtt_ms: float
    mix: str
    shares: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def share(first: Conversation, second: Conversation) -> tuple[float, float]:
    """The first flow's share while both ran, 1 is fair, and their total rate, 10^6 bytes/s.

    Raises AssertionError if they ran together for less than LEAST_S.
    """
    timelines = [one.second.timeline for one in (first, second)]
    begin = max(timeline[0][0] for timeline in timelines)
    end = min(timeline[-1][0] for timeline in timelines)
    assert end - begin >= LEAST_S, f"the flows ran together for only {end - begin:.2f} s"
    one, other = (increase(timeline, begin, end) for timeline in timelines)
    return 2 * one / (one + other), (one + other) / (end - begin) / 1e6


def measure(lab: Lab, folder: Path, spec: RelaySpec, runs: int, seconds: float,
            say: Callable[[str], None]) -> list[Row]:  # fmt: skip
    """Measures all rows. spec: rate and queue; RTTS_MS has the delays. seconds: of each run."""
    size = int(spec.rate_mbps * 1e6 / 8 * seconds / 2)
    rows = [Row(rtt, mix) for rtt in RTTS_MS for mix in MIXES]
    ports = count(10000, 2)
    for run in range(runs):
        for row in rows:
            lab.impair(replace(spec, delay_us=round(row.rtt_ms * 500), seed=run + 1))
            try:
                both = _together(lab, folder, MIXES[row.mix], size, run, next(ports), seconds)
                got, rate = share(*both)
            except (AssertionError, LabError, subprocess.TimeoutExpired) as failure:
                row.failures.append(f"{row.rtt_ms:g}ms, {row.mix}, run {run}: {failure}")
                say(f"FAIL {row.failures[-1]}")
                continue
            row.shares.append(got)
            row.rates.append(rate)
        said = [f"{row.rtt_ms:g}ms {row.mix} {row.shares[-1]:.2f}" for row in rows if row.shares]
        say(f"run {run + 1}: shares of the first flow: {', '.join(said)}")
    return rows


def _together(
    lab: Lab, folder: Path, harp: Sequence[bool], size: int, run: int, port: int, seconds: float
) -> list[Conversation]:
    """Runs both flows together. The first one to start alternates from run to run."""
    under_way: dict[int, OneWay] = {}
    try:
        for number in (0, 1):
            ends, load = (harp[number], harp[number]), Load(size, 2 * run + number, held=True)
            under_way[number] = OneWay(lab.hosts, ends, load, folder, port + number)
        for flow in under_way.values():
            flow.wait_until_held()
        for number in (0, 1) if run % 2 == 0 else (1, 0):
            under_way[number].let_go()
        said = [under_way[number].end(END_S + 10 * seconds) for number in (0, 1)]
    finally:
        for host in lab.hosts:
            host.end_processes()
    for one in said:
        one.check()
    return said


def judge(row: Row) -> Optional[Verdict]:
    """The verdict of a row; None if it has no target."""
    if row.mix == "two of Linux":
        return None
    name = f"{row.rtt_ms:g}ms, {row.mix}"
    if not row.shares:
        return Verdict(f"{name}: not measured", False)
    if row.mix == "two of HARP":
        lesser = summarize([min(one, 2 - one) / max(one, 2 - one) for one in row.shares]).median
        return Verdict(f"{name}: the lesser ≥ {APART}× the other: {lesser:.2f}×", lesser >= APART)
    got = summarize(row.shares).median
    low, high = SHARE
    return Verdict(
        f"{name}: HARP gets {low} to {high} of a fair share: {got:.2f}", low <= got <= high
    )


def show(rows: Sequence[Row], runs: int) -> tuple[list[Verdict], list[str]]:
    """Prints the table and the verdicts. Returns the verdicts and the failures."""
    header = ("RTT", "flows", "share of the first", "both, MB/s")
    lines = [
        [f"{row.rtt_ms:g} ms", row.mix, summarize(row.shares).text(), summarize(row.rates).text(1)]
        for row in rows
        if row.shares
    ]
    click.echo(f"\n{markdown(header, lines, [2, 3])}\n")
    click.echo(f"Medians of {runs} runs (lowest–highest); 1 is a fair share.\n")
    verdicts = [verdict for verdict in map(judge, rows) if verdict]
    show_verdicts(verdicts)
    return verdicts, [failure for row in rows for failure in row.failures]
