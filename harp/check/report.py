# SPDX-License-Identifier: Apache-2.0
"""The report of a check: as a dict for JSON, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Optional

from harp.check import expect
from harp.check.run import Outcome

SCHEMA = "harp.check/1"
WIDEST = 16  # ranks in a matrix of the text; more are shown by hosts

Matrix = list[list[Optional[float]]]


def _matrix(values: Mapping[tuple[int, int], float], ranks: int) -> Matrix:
    return [
        [_rounded(values.get((source, target))) for target in range(ranks)]
        for source in range(ranks)
    ]


def _rounded(value: Optional[float]) -> Optional[float]:
    return None if value is None else float(f"{value:.4g}")


def as_dict(out: Outcome) -> dict[str, Any]:
    """The report. Matrices have a row for each sending rank and a column for each receiving rank;
    None: not measured. Rates in Gbit/s, round trips in µs."""
    trips = {**{(b, a): us for (a, b), us in out.trips_us.items()}, **out.trips_us}
    return {
        "schema": SCHEMA,
        "ranks": out.ranks,
        "seconds": round(out.seconds, 1),
        "good": not any(one.level == "fault" for one in out.findings),
        "hosts": [{"name": one.name, "ranks": list(one.ranks)} for one in out.hosts],
        "findings": [asdict(one) for one in out.findings],
        "expected": expect.sentences(out.hosts, out.together, out.host_of),
        "alone_gbit": _matrix(out.alone, out.ranks),
        "together_gbit": _matrix(out.together, out.ranks),
        "round_trip_us": _matrix(trips, out.ranks),
        "broken": [
            {"source": source, "target": target, "why": why}
            for (source, target), why in sorted(out.broken.items())
        ],
    }


def by_host(report: Mapping[str, Any], matrix: Matrix) -> Matrix:
    """The same matrix with a row and a column for each host: the mean of its ranks."""
    return [
        [_mean(matrix, one["ranks"], other["ranks"]) for other in report["hosts"]]
        for one in report["hosts"]
    ]


def _mean(matrix: Matrix, rows: list[int], columns: list[int]) -> Optional[float]:
    cells = [matrix[row][column] for row in rows for column in columns]
    known = [value for value in cells if value is not None]
    return _rounded(sum(known) / len(known)) if known else None


def cell(value: Optional[float]) -> str:
    """A value of a matrix in at most six characters; "-" for none."""
    if value is None:
        return "-"
    if value < 0.01:  # three digits of it would be wider than a column
        return f"{value:.4f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


TITLES = (
    ("alone_gbit", "one pair at a time, Gbit/s from row to column"),
    ("together_gbit", "all at once, Gbit/s from row to column"),
    ("round_trip_us", "shortest round trip, µs"),
)


def _table(matrix: Matrix) -> Iterator[str]:
    yield "      " + "".join(f"{number:>7}" for number in range(len(matrix)))
    for number, row in enumerate(matrix):
        yield f"{number:>6}" + "".join(f" {cell(value):>6}" for value in row)


def text(report: Mapping[str, Any]) -> Iterator[str]:
    """The report in lines."""
    by_ranks = report["ranks"] <= WIDEST
    for number, one in enumerate(report["hosts"]):
        ranks = ", ".join(map(str, one["ranks"]))
        yield f"host {number}: {one['name']}: rank{'s' if len(one['ranks']) > 1 else ''} {ranks}"
    for name, title in TITLES:
        matrix: Matrix = report[name]
        if any(value is not None for row in matrix for value in row):
            yield ""
            yield f"{title}, by {'rank' if by_ranks else 'host'}:"
            yield from _table(matrix if by_ranks else by_host(report, matrix))
    yield ""
    yield from report["expected"]
    yield ""
    for found in report["findings"]:
        yield f"{found['level']:<6}{found['about']}: {found['text']}"
    faults = sum(found["level"] == "fault" for found in report["findings"])
    verdict = "good" if report["good"] else f"{faults} fault{'s' if faults > 1 else ''}"
    yield f"harp check: {report['ranks']} ranks, {report['seconds']} s: {verdict}"
