# SPDX-License-Identifier: Apache-2.0
"""Runs the rows of a plan: trials of each transport's settings, then interleaved pairs.

Rows that differ only in their size are a group. One run of `harp perf` measures all sizes of a
group for which a transport has the same best settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Optional

from tools.hosts.lab import Lab, LabError
from tools.measure.bench_cells import Cell, transport_of
from tools.measure.bench_plan import (
    ETHDEV,
    HARP,
    IPERF,
    KERNEL,
    KIB,
    MIB,
    RAW,
    RAW_SHARED,
    XDP,
    Plan,
    Row,
    metric_of,
)
from tools.measure.iperf import idle_load, run_iperf
from tools.measure.load import compute_loops
from tools.measure.raw import run_raw, run_raw_shared
from tools.measure.records import Record
from tools.measure.runner import (
    HarpPacket,
    HarpXdp,
    KernelTcp,
    OtherPlugin,
    RunError,
    SizeList,
    Task,
    Transport,
    has_xdp,
    run_perf,
)
from tools.measure.shared import DIRECTIONS, SHARED, HarpEthdev

VERIFIED = 8  # iterations of each verified pass: the timed pass is the measurement
LARGEST_STEP = 128 * KIB  # harp perf's default for a stream; the rows' messages are not cut
TRIALS = 2  # runs of each choice of settings
CLEARLY = 1.05  # times as fast: a smaller gain of a short trial may be chance
START_S, START_SHARED_S, PASS_S = 0.8, 1.5, 0.1  # what a run, and a pass, take beside measuring
TRIAL_S = 0.1  # of each timed pass, about
FEWEST, MOST = 20, 10_000_000  # iterations of a timed pass
YARDSTICKS = {
    IPERF: "iperf3, 1 connection, cubic",
    RAW: "raw, the packet port without TCP",
}

Group = tuple[Row, ...]
Best = dict[int, tuple[Transport, float]]  # by size: the settings, and microseconds an iteration


def groups_of(rows: Iterable[Row]) -> list[Group]:
    """The rows that differ only in their size, in the order of their first ones."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row.wire, row.op, row.hosts, row.busy, row.gbit), []).append(row)
    return [tuple(rows) for rows in found.values()]


def _group_name(group: Group) -> str:
    parts = group[0].name.split()
    return " ".join([*parts[:2], *parts[3:]])


def choices_of(row: Row, baseline: Optional[Path]) -> list[list[Transport]]:
    """The settings to try, of each transport of a row."""
    link = SHARED.get(row.wire)
    if link:
        ways = DIRECTIONS[:1] if row.op == "pingpong" else DIRECTIONS
        kernel: list[Transport] = [OtherPlugin(baseline) if baseline else KernelTcp()]
        harp_ways: list[list[Transport]] = [[HarpEthdev(link, way)] for way in ways]
        return [kernel, *harp_ways]
    counts = {"sendrecv": (1, 2, 4), "pingpong": (1,)}.get(row.op, (1, 2))
    if row.gbit:
        counts = (1,)  # the rate is given, so trials would tell nothing
    harp: list[list[Transport]] = [[HarpPacket(flows=count) for count in counts]]
    if row.has_xdp and has_xdp():
        harp.append([HarpXdp(flows=count) for count in counts])
    if not baseline:
        return [[KernelTcp(nsocks=count) for count in counts], *harp]
    others = [(0, 0), (1, 2), (2, 1)][: len(counts)]
    return [[OtherPlugin(baseline, *one) for one in others], *harp]


def minutes(plan: Plan) -> float:
    """About how long the plan takes on an idle machine."""
    total = 0.0
    for group in groups_of(plan.rows):
        first, count = group[0], len(group)
        choices = choices_of(first, None)
        start = START_SHARED_S if first.wire in SHARED else START_S
        trials = sum(len(one) * (TRIALS if len(one) > 1 else 1) for one in choices)
        total += trials * (start + count * (PASS_S + TRIAL_S))
        total += plan.pairs * len(choices) * (start + count * (PASS_S + plan.seconds))
        if plan.yardstick_s and _has_yardsticks(group):
            runs = len(RAW_SHARED) if first.wire in SHARED else len(YARDSTICKS)
            total += plan.pairs * runs * (plan.yardstick_s + 0.5)
    return total / 60


def _has_yardsticks(group: Group) -> bool:
    first = group[0]
    plain = first.op == "sendrecv" and not first.busy and first.gbit is None
    return plain and any(row.size == MIB for row in group)


def _trial_iterations(row: Row) -> int:
    """Enough for about TRIAL_S on most wires."""
    if row.op == "pingpong":
        return 500
    return max(10, min(4000, 256 * MIB // row.size) // (4 if row.op == "all_reduce" else 1))


def choice_of(times: dict[Transport, float]) -> tuple[Transport, float]:
    """The choice for one size, and its time. times: of each choice that did not fail, by order of
    trials. The first one is a user's default, and stays unless another one is clearly faster."""
    default, fastest = next(iter(times)), min(times, key=lambda one: times[one])
    chosen = fastest if times[fastest] * CLEARLY < times[default] else default
    return chosen, times[chosen]


class Bench:
    """Runs a plan. `progress` receives one line for each event. baseline: a plugin in the place of
    the reference plugin over kernel TCP."""

    def __init__(
        self, plan: Plan, progress: Callable[[str], None], baseline: Optional[Path] = None
    ) -> None:
        self._plan = plan
        self._say = progress
        self._baseline = baseline
        self.load = 0.0  # of the machine before the first run, a fraction of its cores
        self.cells: list[Cell] = []
        self.records: list[Record] = []
        self.failures: list[str] = []

    def run(self) -> None:
        self.load = idle_load()
        self._say(f"other load of the machine: {self.load:.1%} of its cores")
        for group in groups_of(self._plan.rows):
            first = group[0]
            link = SHARED.get(first.wire)
            try:
                with Lab(first.hosts, link.beside if link else first.wire) as lab:
                    self._measure(lab, group)
            except LabError as error:
                self._fail(str(error))

    def _measure(self, lab: Lab, group: Group) -> None:
        first = group[0]
        choices = choices_of(first, self._baseline)
        cells = {row.size: self._cell(row, len(choices)) for row in group}
        sides = [self._best(lab, group, cells, one) for one in choices]
        for pair in range(self._plan.pairs):
            said: list[str] = []
            for side in sides if pair % 2 == 0 else reversed(sides):
                said += self._pair(lab, group, cells, side, pair)
            self._say(
                f"{_group_name(group)}, pair {pair + 1} of {self._plan.pairs}: "
                f"{', '.join(said) or 'nothing'}"
            )
            if self._plan.yardstick_s and _has_yardsticks(group):
                self._yardsticks(lab, cells[MIB], pair)

    def _cell(self, row: Row, sides: int) -> Cell:
        shared = row.wire in SHARED
        rows = (KERNEL, *(ETHDEV if shared else (HARP, XDP))[: sides - 1])
        if self._plan.yardstick_s and _has_yardsticks((row,)):
            rows += RAW_SHARED if shared else tuple(YARDSTICKS)
        cell = Cell(row, rows)
        cell.settings.update(YARDSTICKS)
        cell.settings.update({name: f"{name} (shared memory)" for name in (*ETHDEV, *RAW_SHARED)})
        self.cells.append(cell)
        return cell

    def _best(
        self, lab: Lab, group: Group, cells: dict[int, Cell], choices: Sequence[Transport]
    ) -> Best:
        """The best choice for each size. The faster of a choice's runs counts: other work can only
        slow a run down. Sizes at which every choice failed are left out."""
        sizes = tuple((row.size, _trial_iterations(row), 5) for row in group)
        times: dict[int, dict[Transport, float]] = {}
        for choice in [*choices] * (TRIALS if len(choices) > 1 else 1):
            for record in self._run(lab, group[0], sizes, choice, None):
                tried = times.setdefault(record["size"], {})
                tried[choice] = min(record["time_us"], tried.get(choice, float("inf")))
        best = {size: choice_of(tried) for size, tried in times.items()}
        for size, (choice, _) in best.items():
            beside = f", on {lab.wire.name}" if group[0].wire in SHARED else ""
            if not isinstance(choice, HarpEthdev):
                cells[size].settings[choice.name] = choice.label() + beside
        return best

    def _pair(
        self, lab: Lab, group: Group, cells: dict[int, Cell], side: Best, pair: int
    ) -> list[str]:
        """Measures one side once, with a run for each of its settings."""
        said = []
        by_choice: dict[Transport, list[tuple[int, int, int]]] = {}
        for size, (choice, time_us) in side.items():
            count = max(FEWEST, min(MOST, int(self._plan.seconds * 1e6 / time_us)))
            by_choice.setdefault(choice, []).append((size, count, max(count // 10, 5)))
        for choice, sizes in by_choice.items():
            for record in self._run(lab, group[0], tuple(sizes), choice, pair):
                self._keep(cells[record["size"]], record)
                said.append(_one(cells[record["size"]], record))
        return said

    def _run(
        self,
        lab: Lab,
        row: Row,
        sizes: tuple[tuple[int, int, int], ...],
        choice: Transport,
        pair: Optional[int],
    ) -> list[Record]:
        """The records of a run with all fields; none if the run failed."""
        largest = max(size for size, *_ in sizes)
        task = Task(
            row.op,
            SizeList(sizes),
            step=None if row.op == "all_reduce" else max(largest, LARGEST_STEP),
            pair=pair,
            verified_iterations=VERIFIED,
            rate_gbit=row.gbit,
            rest=row.gbit is not None,
            limit_s=90 + 30 * self._plan.seconds * len(sizes),
        )
        try:
            with compute_loops(lab.hosts[0]) if row.busy else nullcontext():
                records = run_perf(lab, task, choice)
        except (RunError, LabError, FileNotFoundError) as error:
            self._fail(str(error))
            return []
        for record in records:
            record["busy"] = row.busy
            if row.busy:
                record["cpu_s_per_gb"] = None  # the loops take all that is left
            if record["wrong"]:
                self._fail(f"{choice.label()} on {row.wire}: wrong={record['wrong']}")
        return records

    def _yardsticks(self, lab: Lab, cell: Cell, pair: int) -> None:
        seconds, link = self._plan.yardstick_s, SHARED.get(cell.row.wire)
        measures: list[Callable[[], Record]] = [
            partial(run_iperf, lab, seconds, self.load, pair),
            partial(run_raw, lab, seconds, pair),
        ]
        if link:
            measures = [
                partial(run_raw_shared, lab, link, way, copy, seconds, pair)
                for way in DIRECTIONS
                for copy in (False, True)
            ]
        for measure in measures:
            try:
                self._keep(cell, measure())
            except (LabError, FileNotFoundError) as error:
                self._fail(str(error))

    def _keep(self, cell: Cell, record: Record) -> None:
        cell.keep(record)
        self.records.append({**record, "row": cell.row.name})

    def _fail(self, text: str) -> None:
        self.failures.append(text)
        self._say(f"FAIL {text}")


def _one(cell: Cell, record: Record) -> str:
    metric = metric_of(cell.row.op)
    unit = "GB/s" if metric.rises else "µs"
    figure = record[metric.field]
    return f"{transport_of(record)} {cell.row.name.split()[2]} {figure:.2f} {unit}"
