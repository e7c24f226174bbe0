# SPDX-License-Identifier: Apache-2.0
"""The command tools/recovery: compares the loss recovery of HARP and of the kernel.

Two hosts without offloads are joined by the relay. It drops or reorders frames, adds delay, and
limits the rate to one that both TCPs reach easily, so only the recovery differs. Each point is
measured with HARP and the kernel (cubic) in both roles, in turn and with the same seed. Figures are
medians. Every byte is verified. The relay counts the retransmissions, and those of segments that
were delivered before (needless).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Optional

import click

from tools.hosts.conversations import Load, OneWay
from tools.hosts.lab import Lab, LabError
from tools.hosts.relay import RelayError, RelaySpec
from tools.measure import fairness
from tools.measure.iperf import idle_load
from tools.measure.meter import Meter
from tools.measure.options import first_option, json_option
from tools.measure.priority import going_first
from tools.measure.records import describe_host
from tools.measure.stats import Summary, summarize
from tools.measure.tables import markdown
from tools.measure.verdicts import Verdict, show_verdicts

SCHEMA = "harp.recovery/1"
WIRE = "veth-1500-nooff"
LINUX, HARP = "linux->linux", "harp->harp"
PAIRS = {
    LINUX: (False, False),
    HARP: (True, True),
    "harp->linux": (True, False),
    "linux->harp": (False, True),
}
BURST = 5  # frames lost in a row
RTTS_MS = (0.2, 2.0)
LOSSES = (0.0001, 0.001, 0.01, 0.03)
RATE_LEAST = 10  # Mbit/s
RATE_MOST = 1000  # Mbit/s: more would only load the machine more
QUEUE = 256  # frames
CALIBRATION_BYTES = 8_000_000
PILOT_SHARE = 0.25  # of a run
PILOTS = 3  # a single one could be dominated by a timeout
BYTES_LEAST = 2_000_000  # a shorter run would be slow start only
END_S = 20.0
BUSY = 0.2  # of the cores, with other work
FAILURES = (AssertionError, LabError, RelayError, subprocess.TimeoutExpired, OSError)


@dataclass(frozen=True)
class Point:
    """The wire's delay and fault. fault: "clean", "random", "burst" or "reorder"; share: the
    fraction of the frames that it affects."""

    rtt_ms: float
    fault: str = "clean"
    share: float = 0.0

    @property
    def name(self) -> str:
        parts = [f"{self.rtt_ms:g}ms", self.fault]
        return "/".join(parts + ([f"{self.share * 100:g}%"] if self.share else []))

    def spec(self, rate_mbps: int, queue: int, seed: int) -> RelaySpec:
        spec = RelaySpec(
            delay_us=round(self.rtt_ms * 500), rate_mbps=rate_mbps, queue=queue, seed=seed
        )
        if self.fault == "random":
            return replace(spec, drop=self.share)
        if self.fault == "burst":  # the rate of bursts that loses this share of all frames
            begins = self.share / (BURST - (BURST - 1) * self.share)
            return replace(spec, drop=begins, drop_burst=BURST)
        return replace(spec, reorder=self.share)


def points() -> list[Point]:
    found: list[Point] = []
    for rtt in RTTS_MS:
        found.append(Point(rtt))
        found += [Point(rtt, fault, loss) for fault in ("random", "burst") for loss in LOSSES]
        found.append(Point(rtt, "reorder", 0.01))
    return found


@dataclass(frozen=True)
class Trial:
    """One transfer. goodput: 10^6 bytes/s. retransmitted, needless, dropped: counts of the relay.
    counters: HARP's, of the sender if it uses HARP, else of the receiver."""

    pair: str
    run: int
    bytes: int
    goodput: float
    cpu_s_per_gb: float
    retransmitted: int
    needless: int
    dropped: int
    counters: dict[str, int]


@dataclass
class Cell:
    """The results of a point, by pair: trials, and failures as text."""

    point: Point
    trials: dict[str, list[Trial]] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)

    def figures(self, pair: str, name: str) -> Optional[Summary]:
        """The summary over the runs; None without runs. A failed run counts with a goodput of 0:
        a pair must not look faster because it fails."""
        values = [getattr(one, name) for one in self.trials.get(pair, [])]
        if values and name == "goodput":
            values += [0.0] * len(self.failures.get(pair, []))
        return summarize(values) if values else None

    def ratio(self, pair: str) -> Optional[float]:
        """The median goodput relative to two kernels; None if either is not measured."""
        ours, theirs = self.figures(pair, "goodput"), self.figures(LINUX, "goodput")
        if not ours or not theirs:
            return None
        return ours.median / theirs.median if theirs.median else math.inf


def judge(cell: Cell) -> list[Verdict]:
    """The verdicts of a cell. Ratios are rounded to two digits: at the limited rate, the third
    digit is noise."""
    least = {pair: 0.9 for pair in PAIRS if pair != LINUX}
    least[HARP] = 0.98 if cell.point.fault == "clean" else 1.0
    verdicts: list[Verdict] = []
    for pair, bound in least.items():
        ratio = cell.ratio(pair)
        text = f"{cell.point.name}: {pair} ≥ {bound}× {LINUX}: "
        told = "not measured" if ratio is None else f"{ratio:.2f}×"
        verdicts.append(Verdict(text + told, ratio is not None and round(ratio, 2) >= bound))
    if cell.point.fault == "reorder":
        ours, theirs = cell.figures(HARP, "needless"), cell.figures(LINUX, "needless")
        text = f"{cell.point.name}: needless retransmissions of {HARP} ≤ those of {LINUX}: "
        told = f"{ours.median:g} and {theirs.median:g}" if ours and theirs else "not measured"
        met = bool(ours and theirs and ours.median <= theirs.median)
        verdicts.append(Verdict(text + told, met))
    return verdicts


# -- measuring


def _turned(names: list[str], by: int) -> list[str]:
    """The names in rotated order, so that each pair comes first in turn."""
    by %= len(names)
    return names[by:] + names[:by]


class Recovery:
    """Runs points on one pair of hosts.

    seconds: the length of a run, at the speed of two kernels. A run fails after ten times that plus
    timeout_s. queue: the relay's queue, in frames.
    """

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        seconds: float,
        say: Callable[[str], None],
        queue: int = QUEUE,
        timeout_s: float = END_S,
    ) -> None:
        self._lab = lab
        self._folder = folder
        self._seconds = seconds
        self._queue = queue
        self._timeout_s = timeout_s + 10 * seconds
        self._say = say
        self._ports = count(5000)  # a new port each time, because of TIME-WAIT
        self.load = idle_load()
        self.reaches: dict[str, float] = {}  # Mbit/s, unimpaired
        self.rate_mbps = 0
        for host in lab.hosts:  # else the kernel starts with metrics cached from earlier runs
            host.write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1")

    def hold(self) -> None:
        """Measures the rates without faults. Limits the rate to at most half of the lowest."""
        for rtt in RTTS_MS:
            spec = Point(rtt).spec(0, 4096, 1)
            self._lab.impair(spec)
            for pair in (LINUX, HARP):
                trial = self._run(pair, 0, CALIBRATION_BYTES, spec)
                self.reaches[f"{rtt:g}ms {pair}"] = trial.goodput * 8
        half = min(self.reaches.values()) / 2
        self.rate_mbps = min(max(int(half) // 10 * 10, RATE_LEAST), RATE_MOST)
        said = ", ".join(f"{name} {rate:.0f}" for name, rate in self.reaches.items())
        self._say(f"without faults: {said} Mbit/s; limited to {self.rate_mbps}")

    def measure(self, point: Point, runs: int) -> Cell:
        cell = Cell(point)
        size = self._size(point)
        order = [(pair, run) for run in range(runs) for pair in _turned(list(PAIRS), run)]
        specs = [point.spec(self.rate_mbps, self._queue, run + 1) for _, run in order]
        self._lab.impair(specs[0])
        for (pair, run), after in zip(order, [*specs[1:], specs[-1]]):
            try:
                trial = self._run(pair, run, size, after)
            except FAILURES as failure:
                said = f"{point.name}, {pair}, run {run}: {failure}"
                cell.failures.setdefault(pair, []).append(said)
                self._say(f"FAIL {said}")
                continue
            cell.trials.setdefault(pair, []).append(trial)
        self._tell(cell, size)
        return cell

    def _size(self, point: Point) -> int:
        """The bytes that two kernels move in the time of a run."""
        spec = point.spec(self.rate_mbps, self._queue, 1)
        self._lab.impair(spec)
        line = self.rate_mbps * 1e6 / 8 * self._seconds
        size = max(int(line * PILOT_SHARE), BYTES_LEAST)
        try:
            pilots = [self._run(LINUX, number, size, spec) for number in range(PILOTS)]
        except FAILURES as failure:
            self._say(f"{point.name}: a first try failed: {failure}")
            return BYTES_LEAST
        goodput = summarize([pilot.goodput for pilot in pilots]).median
        return max(min(int(goodput * 1e6 * self._seconds), int(line)), BYTES_LEAST)

    def _run(self, pair: str, run: int, size: int, after: RelaySpec) -> Trial:
        """Runs one transfer, then sets the relay's faults to `after`."""
        hosts = self._lab.hosts
        meter = Meter(self.load)
        try:
            transfer = OneWay(
                hosts, PAIRS[pair], Load(size, run + 1), self._folder, next(self._ports)
            )
            said = transfer.end(self._timeout_s)
        finally:
            meter.stop()
            for host in hosts:
                host.end_processes()
            counts = self._lab.impair(after)["a_to_b"]
        said.check()
        told = said.second
        counters = said.report.get("counters", {})
        return Trial(
            pair,
            run,
            size,
            told.goodput,
            meter.busy(told.timeline[0][0], told.timeline[0][0] + told.seconds) / (size / 1e9),
            counts["retransmitted"],
            counts["needless"],
            counts["dropped"],
            {name: value for name, value in counters.items() if name.startswith("tcp_")},
        )

    def _tell(self, cell: Cell, size: int) -> None:
        said = []
        for pair in PAIRS:
            goodput, ratio = cell.figures(pair, "goodput"), cell.ratio(pair)
            if goodput and ratio is not None:
                said.append(f"{pair} {goodput.median:.1f} ({ratio:.2f}×)")
        self._say(f"{cell.point.name}, {size / 1e6:.1f} MB: {', '.join(said)} MB/s")


# -- output

HEADER = ("point", "pair", "MB/s", "over Linux", "lost", "sent again", "needless", "CPU s/GB")


def table(cells: Sequence[Cell]) -> str:
    """The table: medians, with the smallest and largest goodput in brackets."""

    def row(cell: Cell, pair: str) -> list[str]:
        goodput, ratio = cell.figures(pair, "goodput"), cell.ratio(pair)
        if not goodput:
            return [cell.point.name, pair, "failed", *["–"] * 5]
        counted = [
            f"{summary.median:g}"
            for name in ("dropped", "retransmitted", "needless")
            if (summary := cell.figures(pair, name))
        ]
        cpu = cell.figures(pair, "cpu_s_per_gb")
        over = "–" if ratio is None else f"{ratio:.2f}"
        costs = f"{cpu.median:.2f}" if cpu else "–"
        return [cell.point.name, pair, goodput.text(), over, *counted, costs]

    rows = [row(cell, pair) for cell in cells for pair in PAIRS]
    return markdown(HEADER, rows, range(2, len(HEADER)))


def _show(cells: Sequence[Cell], runs: int, rate_mbps: int, queue: int) -> list[Verdict]:
    click.echo(f"\n{table(cells)}\n")
    click.echo(
        f"Medians of {runs} interleaved runs (lowest–highest) at {rate_mbps} Mbit/s through a "
        f"queue of {queue} frames, bursts of {BURST}. Lost: frames. Sent again, needless: data "
        "segments; needless ones were delivered before. CPU: of the whole machine. A failed run "
        "counts with a goodput of 0.\n"
    )
    verdicts = [verdict for cell in cells for verdict in judge(cell)]
    show_verdicts(verdicts)
    return verdicts


def _chosen(only: Sequence[str]) -> list[Point]:
    """The points with names that contain all parts of one of the texts."""
    wanted = [set(text.split("/")) for text in only]
    found = [
        point
        for point in points()
        if not only or any(parts <= set(point.name.split("/")) for parts in wanted)
    ]
    if not found:
        names = ", ".join(point.name for point in points())
        raise click.UsageError(f"--only: no such point; the points are {names}")
    return found


def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="harp-recovery-")


def _lab() -> Lab:
    return Lab(2, WIRE, RelaySpec())


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only", multiple=True, metavar="TEXT",
    help='Only points with these parts ("2ms", "burst/1%", "0.2ms/reorder"); repeat for more.',
)  # fmt: skip
@click.option(
    "--runs", default=9, show_default=True, type=click.IntRange(1), help="Runs of each pair."
)
@click.option(
    "--seconds", default=1.0, show_default=True, type=click.FloatRange(0.05),
    help="Length of a run of two kernels; ten times that with --fairness.",
)  # fmt: skip
@click.option(
    "--rate", "wanted_mbps", type=click.IntRange(1),
    help="Rate limit in Mbit/s.  [default: half of the slower TCP's rate]",
)  # fmt: skip
@click.option(
    "--queue", default=QUEUE, show_default=True, type=click.IntRange(128, 65536),
    help="Length of the relay's queue in frames; further frames are dropped.",
)  # fmt: skip
@click.option(
    "--fairness", "fair", is_flag=True,
    help="Instead: measure the shares of two parallel flows, of HARP, of the kernel, or mixed.",
)  # fmt: skip
@first_option
@json_option("all trials and targets")
def main(only: tuple[str, ...], runs: int, seconds: float, wanted_mbps: Optional[int], queue: int,
         fair: bool, first: bool, json_path: Optional[Path]) -> None:  # fmt: skip
    """Measure loss recovery through a relay: HARP, the kernel, and each with the other.

    Exit: 0 if every run succeeded, whether or not it met its target; 1 if one failed or moved
    wrong bytes; 2 on wrong usage.
    """
    chosen = _chosen(only)
    if os.geteuid() != 0:
        raise click.UsageError("hosts are network namespaces: run this as root")
    start = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - start:4.0f} s] {text}", err=True)

    try:
        with going_first(first), _folder() as folder, _lab() as lab:
            measuring = Recovery(lab, Path(folder), seconds, say, queue)
            if wanted_mbps:
                measuring.rate_mbps = wanted_mbps
            else:
                measuring.hold()
            document: dict[str, Any] = {
                "schema": SCHEMA,
                "host": describe_host(),
                "own_load": measuring.load,
                "reaches_mbps": measuring.reaches,
                "rate_mbps": measuring.rate_mbps,
                "queue": queue,
            }
            if fair:
                shared = RelaySpec(rate_mbps=measuring.rate_mbps, queue=queue)
                long = fairness.LONGER * seconds
                rows = fairness.measure(lab, Path(folder), shared, runs, long, say)
                verdicts, failures = fairness.show(rows, runs)
                document["fairness"] = [asdict(row) for row in rows]
            else:
                cells = [measuring.measure(point, runs) for point in chosen]
                verdicts = _show(cells, runs, measuring.rate_mbps, queue)
                failures = [
                    one for cell in cells for said in cell.failures.values() for one in said
                ]
                document["points"] = [asdict(cell) for cell in cells]
    except FAILURES as error:
        raise click.ClickException(str(error)) from None
    if measuring.load > BUSY and not first:
        click.echo(f"\nOther work used {measuring.load:.0%} of the machine's cores.")
    for failure in failures:
        click.echo(f"FAIL {failure.splitlines()[0]}", err=True)
    if json_path:
        document.update(targets=[asdict(one) for one in verdicts], failures=failures)
        json_path.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(prog_name="tools/recovery")
