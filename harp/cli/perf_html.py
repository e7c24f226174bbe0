# SPDX-License-Identifier: Apache-2.0
"""The report of `harp perf --html`: HARP's measurements beside the kernel's, as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Optional

from harp.check.html import document
from harp.cli.chart import Axis, chart

_COLUMNS = ("size", "harp", "kernel", "ratio", "harp", "kernel", "wrong")
_GROUPS = (("", 1), ("time (µs)", 3), ("busbw (GB/s)", 2), ("", 1))


def size_text(size: float) -> str:
    """Bytes, with the suffixes of the command line."""
    for suffix, shift in (("G", 30), ("M", 20), ("K", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):g}{suffix}"
    return f"{size:g}"


def _value(value: Optional[float]) -> str:
    return "–" if value is None else f"{value:.4g}"


def _rows(harp: list[Any], kernel: list[Any]) -> Iterator[str]:
    yield "<table><tr>"
    yield from (f'<th colspan="{width}">{name}</th>' for name, width in _GROUPS)
    yield "</tr><tr>"
    yield from (f"<th>{name}</th>" for name in _COLUMNS)
    yield "</tr>"
    for ours, theirs in zip(harp, kernel):
        times = ours["time_us"], theirs["time_us"]
        ratio = None if None in times or not times[0] else times[1] / times[0]
        shown = [size_text(ours["size"]), *map(_value, (*times, ratio))]
        shown += [_value(ours["busbw_gbs"]), _value(theirs["busbw_gbs"])]
        shown.append(str(int(ours["wrong"] + theirs["wrong"])))
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in shown) + "</tr>"
    yield "</table>"


def _points(records: list[Any], field: str) -> list[tuple[float, float]]:
    return [(r["size"], r[field]) for r in records if r[field] is not None]


def page(harp: Mapping[str, Any], kernel: Mapping[str, Any]) -> str:
    """The page of two sets of records (harp.perf/1) of the same run. Texts of the hosts are
    escaped."""
    first = harp["records"][0]
    sizes = Axis("message size (bytes)", 2, size_text)
    times = Axis("time (µs)", 10, lambda value: f"{value:g}")
    rates = Axis("busbw (GB/s)", 10, lambda value: f"{value:g}")
    both = {"HARP": harp["records"], "kernel TCP": kernel["records"]}
    host = harp["host"]
    about = (
        f"{first['nranks']} ranks, {first['dtype']}; rank 0 on {host['name']}: "
        f"{host['processor'] or host['machine']}, Linux {host['kernel']}; {host['device']}; "
        f"HARP {first['version']}; {host['date']}"
    )
    return document(
        "harp perf",
        f"harp perf {escape(first['op'])}",
        [
            f"<p>{escape(about)}</p><h2>Bus bandwidth</h2>",
            chart(sizes, rates, {n: _points(r, "busbw_gbs") for n, r in both.items()}),
            "<h2>Time of an operation</h2>",
            chart(sizes, times, {n: _points(r, "time_us") for n, r in both.items()}),
            "<h2>Figures</h2><p>A ratio above 1: HARP is faster. Every byte was verified; ",
            "“wrong” counts elements that arrived wrong, over both.</p>",
            *_rows(harp["records"], kernel["records"]),
        ],
    )
