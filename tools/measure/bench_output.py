# SPDX-License-Identifier: Apache-2.0
"""The benchmark's table, verdicts and document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Optional

from tools.measure.bench_cells import Cell, Judged
from tools.measure.bench_plan import CPU, KERNEL, P99, RATE, Metric, metric_of
from tools.measure.tables import markdown
from tools.measure.verdicts import Verdict

SMALLEST_COST = 4096  # bytes; the CPU time of polling says nothing about smaller messages
HEADER = (
    "wire",
    "operation",
    "transport",
    "GB/s",
    "p50 or time, µs",
    "p99 µs",
    "CPU s/GB",
    "over kernel-tcp",
)


def _shown(cell: Cell, transport: str, metric: Metric, digits: int) -> str:
    summary = cell.summary(transport, metric)
    return summary.text(digits) if summary else "–"


def _line(cell: Cell, transport: str) -> list[str]:
    start = [cell.row.wire, cell.row.operation]
    if not cell.records.get(transport):
        return [*start, f"{transport}: failed", *["–"] * 5]
    main = metric_of(cell.row.op)
    has_cost = cell.row.op != "pingpong" and cell.row.size >= SMALLEST_COST
    ratio = cell.ratio(transport, KERNEL) if transport != KERNEL else None
    return [
        *start,
        cell.settings[transport],
        _shown(cell, transport, RATE, 2) if main is RATE else "–",
        _shown(cell, transport, main, 1) if main is not RATE else "–",
        _shown(cell, transport, P99, 1),
        _shown(cell, transport, CPU, 3) if has_cost else "–",
        ratio.text() if ratio else "–",
    ]


def table(cells: Sequence[Cell]) -> str:
    """The table of all cells: medians, with the smallest and largest figure in brackets."""
    lines = [_line(cell, transport) for cell in cells for transport in cell.transports]
    return markdown(HEADER, lines, [3, 4, 5, 6, 7])


def verdict(judged: Judged) -> Verdict:
    """The target with its aim in brackets, and the median ratio with its range."""
    ratio = judged.ratio
    reached = f"{ratio.median:.2f}× ({ratio.low:.2f}–{ratio.high:.2f})" if ratio else "not measured"
    return Verdict(f"{judged.target.text()}: {reached}", judged.met)


def _target_fields(judged: Judged) -> dict[str, Any]:
    target, ratio = judged.target, judged.ratio
    return {
        "row": target.row.name,
        "figure": target.metric.field,
        "at_least": target.metric.rises,
        "ours": target.ours,
        "theirs": target.theirs,
        "bound": target.bound,
        "aim": target.aim,
        "ratio": ratio.median if ratio else None,
        "lowest": ratio.low if ratio else None,
        "highest": ratio.high if ratio else None,
        "pairs": ratio.count if ratio else 0,
        "met": judged.met,
    }


def extra(
    load: float,
    cells: Sequence[Cell],
    judged: Sequence[Judged],
    failures: Sequence[str],
    baseline: Optional[str],
) -> dict[str, Any]:
    """What the document holds beside the records."""
    return {
        "own_load": load,
        "baseline": baseline,
        "rows": [{"name": cell.row.name, **asdict(cell.row)} for cell in cells],
        "targets": [_target_fields(one) for one in judged],
        "failures": list(failures),
    }
