# SPDX-License-Identifier: Apache-2.0
"""Reports as one HTML page, without scripts and without other files; that of a check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any, Optional

from harp.check.report import TITLES, Matrix, by_host, cell

WIDEST = 64  # ranks in a heat map; more are shown by hosts

_STYLE = """
body { font: 14px/1.4 sans-serif; margin: 2em; color: #222; }
table { border-collapse: collapse; margin: 0 0 1.5em; }
th, td { padding: 2px 6px; text-align: right; font-weight: normal; border: 1px solid #fff; }
th { background: #eee; }
td.none { background: #f6f6f6; color: #999; }
tr.fault td:first-child { background: #d33; color: #fff; }
tr.note td:first-child { background: #fc6; }
.findings td { text-align: left; border: 1px solid #ddd; }
.good { color: #171; } .bad { color: #b00; }
"""


def _colour(value: float, best: float, high_is_good: bool) -> str:
    """From red (bad) over yellow to green (good)."""
    share = value / best if high_is_good else best / value
    hue = round(120 * max(0.0, min(1.0, share)))
    return f"hsl({hue}, 70%, 75%)"


def _best(matrix: Matrix) -> float:
    """The value that is green: the median of the matrix, so that one outlier changes nothing."""
    known = sorted(value for row in matrix for value in row if value)
    return known[len(known) // 2] if known else 0.0


def _cell(value: Optional[float], best: float, high: bool, title: str) -> str:
    if not value or not best:
        return f'<td class="none" title="{escape(title)}">{cell(value)}</td>'
    style = f"background: {_colour(value, best, high)}"
    return f'<td style="{style}" title="{escape(title)}">{cell(value)}</td>'


def _map(matrix: Matrix, names: list[str], high: bool) -> Iterator[str]:
    best = _best(matrix)
    yield "<table><tr><th></th>"
    yield from (f'<th title="{escape(name)}">{n}</th>' for n, name in enumerate(names))
    yield "</tr>"
    for number, row in enumerate(matrix):
        yield f"<tr><th>{escape(names[number])}</th>"
        for target, value in enumerate(row):
            title = f"{names[number]} to {names[target]}"
            yield _cell(value, best, high, title)
        yield "</tr>"
    yield "</table>"


def _findings(report: Mapping[str, Any]) -> Iterator[str]:
    if not report["findings"]:
        yield "<p>No findings.</p>"
        return
    yield '<table class="findings">'
    for one in report["findings"]:
        cells = "".join(f"<td>{escape(one[name])}</td>" for name in ("level", "about", "text"))
        yield f'<tr class="{escape(one["level"])}">{cells}</tr>'
    yield "</table>"


def _names(report: Mapping[str, Any], by_ranks: bool) -> list[str]:
    if not by_ranks:
        return [f"{number} {one['name']}" for number, one in enumerate(report["hosts"])]
    names = [f"{rank} (missing)" for rank in range(report["ranks"])]
    for one in report["hosts"]:
        for rank in one["ranks"]:
            names[rank] = f"{rank} {one['name']}"
    return names


def document(title: str, heading: str, body: Iterable[str]) -> str:
    """A page with the style of HARP's reports. heading and body are HTML."""
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{heading}</h1>{''.join(body)}</body></html>\n"
    )


def page(report: Mapping[str, Any]) -> str:
    """The page. Names come from the hosts, and are escaped."""
    good = report["good"]
    verdict = "good" if good else "faults were found"
    by_ranks = report["ranks"] <= WIDEST
    names = _names(report, by_ranks)
    parts = [
        f"<p>{report['ranks']} ranks on {len(report['hosts'])} hosts, {report['seconds']} s</p>",
        "<h2>Findings</h2>",
        *_findings(report),
        *(f"<p>{escape(line)}</p>" for line in report["expected"]),
    ]
    for name, title in TITLES:
        matrix: Matrix = report[name]
        shown = matrix if by_ranks else by_host(report, matrix)
        parts += [f"<h2>{escape(title)}</h2>", *_map(shown, names, name != "round_trip_us")]
    heading = f'harp check: <span class="{"good" if good else "bad"}">{verdict}</span>'
    return document("harp check", heading, parts)
