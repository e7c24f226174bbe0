# SPDX-License-Identifier: Apache-2.0
"""The benchmark: HARP and the kernel's TCP on the same wire, in interleaved pairs.

On each wire, both sides first try their settings and keep the best. They are then measured in
pairs, so that a slow machine slows both. Every round also measures iperf3 and the raw speed of the
packet port. Figures are medians with their range; a ratio is the median of the pairs' ratios.

On links of shared memory (tools/measure/shared.py), both directions of HARP are compared with the
kernel's TCP on the most similar veth, and with the raw speed of the link, with and without the
receiver's copy.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import click

from tools.hosts.lab import Lab, LabError
from tools.measure import instructions
from tools.measure.iperf import idle_load, run_iperf
from tools.measure.options import json_option
from tools.measure.raw import run_raw, run_raw_shared
from tools.measure.records import Document, Record
from tools.measure.runner import (
    HarpPacket,
    KernelTcp,
    RunError,
    Sizes,
    Task,
    Transport,
    run_perf,
)
from tools.measure.shared import DIRECTIONS, SHARED, HarpEthdev, SharedLink
from tools.measure.stats import Summary, ratios, summarize
from tools.measure.tables import markdown, size_text
from tools.measure.verdicts import Verdict

MIB = 1 << 20
TRIAL_ITERATIONS = 300
TRIAL = Task(
    "sendrecv",
    Sizes(MIB, MIB),
    TRIAL_ITERATIONS,
    warmup=TRIAL_ITERATIONS // 10,
    step=MIB,
    outstanding=8,
)
BUSY = 0.2  # of the cores: with more other load, CPU figures of a run mean nothing
KERNEL, HARP, IPERF, RAW = "kernel-tcp", "harp-packet", "iperf3", "raw"
ETHDEV = tuple(f"harp-ethdev {direction}" for direction in DIRECTIONS)
RAW_SHARED = tuple(
    f"raw {direction}{copied}" for direction in DIRECTIONS for copied in ("", ", copied")
)
YARDSTICKS = {
    IPERF: "iperf3, 1 connection, cubic",
    RAW: "raw, the packet port without TCP",
}


def row_of(record: Record) -> str:
    """The row of a cell for a record: its transport, and its direction on a shared link."""
    words = [record["transport"]]
    if record["direction"] in DIRECTIONS:
        words.append(record["direction"] + (", copied" if record.get("copy") else ""))
    return " ".join(words)


@dataclass(frozen=True)
class Target:
    """A target: the ratio of `ours` to `theirs` must be at least, or at most, `bound`."""

    wire: str
    op: str
    ours: str
    theirs: str
    bound: float
    at_most: bool = False

    def text(self) -> str:
        what = "p50" if self.op == "pingpong" else "GB/s"
        sign = "≤" if self.at_most else "≥"
        wire = f"{self.wire} (shared memory)" if self.wire in SHARED else self.wire
        return f"{wire}, {self.op}: {self.ours} {what} {sign} {self.bound}× {self.theirs}"

    def met(self, ratio: float) -> bool:
        return ratio <= self.bound if self.at_most else ratio >= self.bound


@dataclass(frozen=True)
class Plan:
    """The extent of a measurement."""

    wires: Tuple[str, ...]
    shared: Tuple[str, ...]
    pairs: int
    seconds: float  # of each run with 1 MiB messages, at the faster side's speed
    round_trips: int
    yardstick_s: float  # of iperf3, and of raw frames
    targets: Tuple[Target, ...]


def _targets(wires: Sequence[Tuple[str, float]]) -> Tuple[Target, ...]:
    found = [Target(wire, "sendrecv", HARP, KERNEL, bound) for wire, bound in wires]
    found += [Target(wire, "sendrecv", KERNEL, IPERF, 0.9) for wire, _ in wires]
    found.append(Target("veth-1500", "pingpong", HARP, KERNEL, 1.0, at_most=True))
    return tuple(found)


def _shared_targets(links: Sequence[Tuple[str, float]]) -> Tuple[Target, ...]:
    """The targets of each direction: both directions must meet theirs."""
    found = [
        Target(link, "sendrecv", row, KERNEL, bound) for link, bound in links for row in ETHDEV
    ]
    found += [
        Target("vhost-1500", "sendrecv", f"harp-ethdev {way}", f"raw {way}, copied", 0.25)
        for way in DIRECTIONS
    ]
    found += [Target(link, "pingpong", ETHDEV[0], KERNEL, 0.3, at_most=True) for link, _ in links]
    return tuple(found)


QUICK = Plan(
    ("veth-1500", "veth-1500-nooff"),
    ("vhost-1500", "vhost-tso"),
    pairs=5,
    seconds=1,
    round_trips=10000,
    yardstick_s=1,
    targets=_targets([("veth-1500", 0.6), ("veth-1500-nooff", 0.5)])
    + _shared_targets([("vhost-1500", 3.0), ("vhost-tso", 1.2)]),
)
FULL = Plan(
    (*QUICK.wires, "veth-9000"),
    (*QUICK.shared, "vhost-9000"),
    pairs=9,
    seconds=2,
    round_trips=30000,
    yardstick_s=3,
    targets=_targets([("veth-1500", 0.6), ("veth-1500-nooff", 0.5)])
    + _shared_targets([("vhost-1500", 3.0), ("vhost-tso", 1.2), ("vhost-9000", 1.0)]),
)


@dataclass
class Cell:
    """One operation on one wire: the best settings, and the records of every pair."""

    wire: str
    op: str
    size: int
    rows: Tuple[str, ...] = (KERNEL, HARP)
    settings: Dict[str, str] = field(default_factory=dict)
    records: Dict[str, List[Record]] = field(default_factory=dict)
    failures: List[str] = field(default_factory=list)

    def title(self) -> str:
        return f"{self.wire}, {self.op} {size_text(self.size)}"

    def figures(self, transport: str) -> List[float]:
        """The figures to compare: GB/s, or for pingpong the median in microseconds."""
        name = "p50_us" if self.op == "pingpong" else "algbw_gbs"
        return [record[name] for record in self.records.get(transport, [])]

    def ratio(self, ours: str, theirs: str) -> Optional[Summary]:
        """The ratios over the pairs with both records; None if there are none."""
        pairs = [
            {
                record["pair"]: figure
                for record, figure in zip(self.records.get(name, []), self.figures(name))
            }
            for name in (ours, theirs)
        ]
        both = sorted(set(pairs[0]) & set(pairs[1]))
        return ratios(*([by[pair] for pair in both] for by in pairs)) if both else None


class Bench:
    """Runs a plan. `progress` receives one line for each event."""

    def __init__(self, plan: Plan, progress: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = progress
        self.load = 0.0  # of the machine before the first run, a fraction of its cores
        self.cells: List[Cell] = []
        self.records: List[Record] = []

    def run(self) -> None:
        self.load = idle_load()
        self._say(f"other load of the machine: {self.load:.1%} of its cores")
        for wire in self._plan.wires:
            with Lab(2, wire) as lab:
                self._stream(lab)
                self._round_trips(lab)
        for name in self._plan.shared:
            link = SHARED[name]
            with Lab(2, link.beside) as lab:
                self._stream_shared(lab, link)
                self._round_trips_shared(lab, link)

    def _stream(self, lab: Lab) -> None:
        short = TRIAL
        cell = self._cell(lab.wire.name, short, (KERNEL, HARP, *YARDSTICKS))
        best = [
            self._best(lab, cell, short, [KernelTcp(nsocks=n) for n in (1, 2, 4)]),
            self._best(lab, cell, short, [HarpPacket(flows=n) for n in (1, 2, 4)]),
        ]
        task = self._long_enough(max((speed for _, speed in filter(None, best)), default=0.0))
        sides = [one and one[0] for one in best]
        for pair in range(self._plan.pairs):
            self._pair(lab, cell, task, sides, pair)
            self._yardsticks(lab, cell, pair)

    def _long_enough(self, fastest: float) -> Task:
        """The task with enough messages for the plan's duration, at `fastest` GB/s."""
        return replace(TRIAL, iterations=max(int(fastest * 1e9 / MIB * self._plan.seconds), 100))

    def _stream_shared(self, lab: Lab, link: SharedLink) -> None:
        cell = self._cell(link.name, TRIAL, (KERNEL, *ETHDEV, *RAW_SHARED))
        choices: List[Transport] = [HarpEthdev(link, direction) for direction in DIRECTIONS]
        sides: List[Transport] = [KernelTcp(), *choices]
        speeds = [one and one[1] for one in (self._best(lab, cell, TRIAL, [s]) for s in sides)]
        self._name_sides(cell, link, lab)
        task = self._long_enough(max(filter(None, speeds), default=0.0))
        for pair in range(self._plan.pairs):
            self._pair(lab, cell, task, sides, pair)
            self._measure(cell, self._raw_shared(lab, link, pair))

    def _raw_shared(self, lab: Lab, link: SharedLink, pair: int) -> List[Callable[[], Record]]:
        seconds = self._plan.yardstick_s
        return [
            partial(run_raw_shared, lab, link, direction, copy, seconds, pair)
            for direction in DIRECTIONS
            for copy in (False, True)
        ]

    def _round_trips_shared(self, lab: Lab, link: SharedLink) -> None:
        task = Task("pingpong", Sizes(8, 8), self._plan.round_trips, warmup=1000)
        cell = self._cell(link.name, task, (KERNEL, ETHDEV[0]))
        self._name_sides(cell, link, lab)
        for pair in range(self._plan.pairs):
            self._pair(lab, cell, task, [KernelTcp(), HarpEthdev(link)], pair)

    @staticmethod
    def _name_sides(cell: Cell, link: SharedLink, lab: Lab) -> None:
        cell.settings[KERNEL] = f"{KernelTcp().label()}, on {lab.wire.name}"
        for row in (*ETHDEV, *RAW_SHARED):
            cell.settings[row] = f"{row} (shared memory)"

    def _yardsticks(self, lab: Lab, cell: Cell, pair: int) -> None:
        seconds = self._plan.yardstick_s
        self._measure(
            cell,
            [
                lambda: run_iperf(lab, seconds, self.load, pair),
                lambda: run_raw(lab, seconds, pair),
            ],
        )

    def _measure(self, cell: Cell, measures: Sequence[Callable[[], Record]]) -> None:
        for measure in measures:
            try:
                self._keep(cell, measure())
            except (LabError, FileNotFoundError) as error:
                cell.failures.append(str(error))
                self._say(f"FAIL {error}")

    def _round_trips(self, lab: Lab) -> None:
        task = Task("pingpong", Sizes(8, 8), self._plan.round_trips, warmup=1000)
        cell = self._cell(lab.wire.name, task, (KERNEL, HARP))
        sides: List[Optional[Transport]] = [KernelTcp(), HarpPacket(flows=1)]
        for side in sides:
            assert side
            cell.settings[side.name] = side.label()
        for pair in range(self._plan.pairs):
            self._pair(lab, cell, task, sides, pair)

    def _cell(self, wire: str, task: Task, rows: Tuple[str, ...]) -> Cell:
        cell = Cell(wire, task.op, task.sizes.first, rows)
        cell.settings.update(YARDSTICKS)
        self.cells.append(cell)
        return cell

    def _best(
        self, lab: Lab, cell: Cell, short: Task, choices: Sequence[Transport]
    ) -> Optional[Tuple[Transport, float]]:
        """The choice with the most GB/s in two short runs, and its speed; None if all fail.

        The faster of a choice's two runs counts: other work can only slow a run down.
        """
        speeds: Dict[Transport, float] = {}
        for choice in [*choices, *choices]:
            record = self._run(lab, cell, short, choice)
            if record:
                speeds[choice] = max(record["algbw_gbs"], speeds.get(choice, 0.0))
        if not speeds:
            return None
        best = max(speeds, key=lambda choice: speeds[choice])
        cell.settings[best.name] = best.label()
        said = ", ".join(f"{choice.label()} {speed:.2f}" for choice, speed in speeds.items())
        self._say(f"{cell.title()}: {said} GB/s")
        return best, speeds[best]

    def _pair(
        self, lab: Lab, cell: Cell, task: Task, sides: Sequence[Optional[Transport]], pair: int
    ) -> None:
        """Measures both sides once. The first side alternates from pair to pair."""
        said: List[str] = []
        for side in sides if pair % 2 == 0 else reversed(sides):
            record = self._run(lab, cell, replace(task, pair=pair), side) if side else None
            if record:
                self._keep(cell, record)
                said.append(_one(cell, record))
        self._say(f"{cell.title()}, pair {pair + 1}: {', '.join(said) or 'nothing'}")

    def _run(self, lab: Lab, cell: Cell, task: Task, side: Transport) -> Optional[Record]:
        """The record of a run; None if the run failed. The cell keeps the failure."""
        try:
            record = run_perf(lab, task, side)[0]
        except (RunError, LabError, FileNotFoundError) as error:
            cell.failures.append(str(error))
            self._say(f"FAIL {error}")
            return None
        if record["wrong"]:
            cell.failures.append(f"{side.label()} on {cell.wire}: wrong={record['wrong']}")
        return record

    def _keep(self, cell: Cell, record: Record) -> None:
        cell.records.setdefault(row_of(record), []).append(record)
        self.records.append(record)


def _one(cell: Cell, record: Record) -> str:
    if cell.op == "pingpong":
        return f"{row_of(record)} {record['p50_us']:.1f} µs"
    return f"{row_of(record)} {record['algbw_gbs']:.2f} GB/s"


# -- output


def _cell_line(cell: Cell, transport: str) -> List[str]:
    records = cell.records.get(transport, [])
    start = [cell.wire, f"{cell.op} {size_text(cell.size)}"]
    if not records:
        return [*start, f"{transport}: failed", *["–"] * 5]
    main = summarize(cell.figures(transport))
    ratio = cell.ratio(transport, KERNEL) if transport != KERNEL else None
    over = ratio.text() if ratio else "–"
    start.append(cell.settings[transport])
    if cell.op == "pingpong":
        tail = summarize([record["p99_us"] for record in records])
        return [*start, "–", main.text(1), f"{tail.median:.1f}", "–", over]
    costs = [record["cpu_s_per_gb"] for record in records if record["cpu_s_per_gb"] is not None]
    cpu = f"{summarize(costs).median:.3f}" if costs else "–"
    return [*start, main.text(), "–", "–", cpu, over]


def table(cells: Sequence[Cell]) -> str:
    """The table of all cells: medians, with the smallest and largest figure in brackets."""
    header = [
        "wire",
        "operation",
        "transport",
        "GB/s",
        "p50 µs",
        "p99 µs",
        "CPU s/GB",
        "over kernel-tcp",
    ]
    lines = [_cell_line(cell, transport) for cell in cells for transport in cell.rows]
    return markdown(header, lines, [3, 4, 5, 6, 7])


def judge(cells: Sequence[Cell], targets: Sequence[Target]) -> List[Tuple[Target, Optional[float]]]:
    """Every target with its measured ratio; None: not measured."""
    by_name = {(cell.wire, cell.op): cell for cell in cells}
    judged: List[Tuple[Target, Optional[float]]] = []
    for target in targets:
        cell = by_name.get((target.wire, target.op))
        ratio = cell.ratio(target.ours, target.theirs) if cell else None
        judged.append((target, ratio.median if ratio else None))
    return judged


def verdict(target: Target, reached: Optional[float]) -> str:
    if reached is None:
        return str(Verdict(f"{target.text()}: not measured", False))
    return str(Verdict(f"{target.text()}: {reached:.2f}×", target.met(reached)))


def _extra(bench: Bench, judged: Sequence[Tuple[Target, Optional[float]]]) -> Dict[str, object]:
    return {
        "own_load": bench.load,
        "targets": [
            {**asdict(target), "ratio": ratio, "met": ratio is not None and target.met(ratio)}
            for target, ratio in judged
        ],
        "failures": [failure for cell in bench.cells for failure in cell.failures],
    }


def _count(json_path: Optional[Path]) -> int:
    """Counts instructions. Returns the exit status: 1 if it cannot count."""
    try:
        rows = instructions.rows()
    except instructions.CannotCount as error:
        click.echo(f"bench: {error}", err=True)
        return 1
    click.echo(f"\n{instructions.table(rows)}\n")
    click.echo("Instructions; bursts of 32 segments of 1448 bytes, without checksums and copies.")
    if json_path:
        text = json.dumps(
            {"schema": "harp.instructions/1", "rows": [asdict(row) for row in rows]}, indent=1
        )
        json_path.write_text(text + "\n")
    return 0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--quick",
    is_flag=True,
    help="Measure two wires and two links of shared memory with 5 pairs: about six minutes.",
)
@json_option("all records and targets")
@click.option(
    "--instructions",
    "counted",
    is_flag=True,
    help="Only count the stack's instructions for a segment with callgrind: about a minute.",
)
def main(quick: bool, json_path: Optional[Path], counted: bool) -> None:
    """Compare HARP with the kernel's TCP, in interleaved pairs on the same wires.

    Exit: 0 if every run succeeded, whether or not it met its target; 1 if one failed
    or moved wrong bytes; 2 on wrong usage.
    """
    if counted:
        sys.exit(_count(json_path))
    start = time.monotonic()
    plan = QUICK if quick else FULL

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - start:4.0f} s] {text}", err=True)

    bench = Bench(plan, say)
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
    for target, reached in judged:
        click.echo(verdict(target, reached))
    failures = [failure for cell in bench.cells for failure in cell.failures]
    for failure in failures:
        click.echo(f"FAIL {failure.splitlines()[0]}", err=True)
    if json_path:
        Document(records=bench.records, extra=_extra(bench, judged)).save(json_path)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(prog_name="tools/bench")
