# SPDX-License-Identifier: Apache-2.0
"""The records of a benchmark by row and transport, and their ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from tools.measure.bench_plan import Metric, Row, Target, metric_of
from tools.measure.records import Record
from tools.measure.shared import DIRECTIONS
from tools.measure.stats import Summary, ratios, summarize


def transport_of(record: Record) -> str:
    """The line of a record in its row: its transport, and its direction on a shared link."""
    parts = [record["transport"]]
    if record["direction"] in DIRECTIONS:
        parts.append(record["direction"] + (", copied" if record.get("copy") else ""))
    return " ".join(parts)


@dataclass
class Cell:
    """A row with the transports to compare: the settings of each, and its records of all pairs."""

    row: Row
    transports: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=dict)

    def keep(self, record: Record) -> None:
        self.records.setdefault(transport_of(record), []).append(record)

    def summary(self, transport: str, metric: Metric) -> Optional[Summary]:
        """None without a figure, as of an operation without round trips."""
        figures = self._figures(transport, metric)
        return summarize(list(figures.values())) if figures else None

    def ratio(self, ours: str, theirs: str, metric: Optional[Metric] = None) -> Optional[Summary]:
        """The ratios over the pairs with both figures; None if there are none."""
        metric = metric or metric_of(self.row.op)
        pairs = [self._figures(name, metric) for name in (ours, theirs)]
        both = sorted(set(pairs[0]) & set(pairs[1]))
        return ratios(*([by[pair] for pair in both] for by in pairs)) if both else None

    def _figures(self, transport: str, metric: Metric) -> dict[int, float]:
        """The figures by pair. A figure of 0 comes from a pass that is too short to measure."""
        return {
            record["pair"]: record[metric.field]
            for record in self.records.get(transport, [])
            if record[metric.field]
        }


@dataclass(frozen=True)
class Judged:
    """A target with the ratios that were measured; None: not measured."""

    target: Target
    ratio: Optional[Summary]

    @property
    def met(self) -> bool:
        return self.ratio is not None and self.target.met(self.ratio.median)


def judge(cells: Sequence[Cell], targets: Sequence[Target]) -> list[Judged]:
    by_row = {cell.row: cell for cell in cells}
    judged = []
    for target in targets:
        cell = by_row.get(target.row)
        ratio = cell.ratio(target.ours, target.theirs, target.metric) if cell else None
        judged.append(Judged(target, ratio))
    return judged
