# SPDX-License-Identifier: Apache-2.0
"""The coverage of the C code: gcovr's figures for each area, against their bounds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[2]
MARKER = re.compile(r"GCOVR_EXCL_(?:BR_)?(?:LINE|START)\b:?[ \t]*(.*?)[ \t]*(?:\*/)?$")


class CoverageError(Exception):
    """The coverage cannot be measured. The message says why."""


@dataclass(frozen=True)
class Bound:
    """The least percentages; None: no bound."""

    lines: int
    branches: Optional[int] = None


# An area is a folder with its subfolders.
BOUNDS: Mapping[str, Bound] = {
    "harp/stack": Bound(95, 85),
    "harp/engine": Bound(90),
    "plugin": Bound(90),
}


@dataclass
class Tally:
    reached: int = 0
    total: int = 0

    def add(self, reached: bool) -> None:
        self.reached += reached
        self.total += 1

    def below(self, percent: int) -> bool:
        """Whether the figure is below a percentage, without rounding. An area without code is below
        any."""
        return self.total == 0 or self.reached * 100 < percent * self.total

    def __str__(self) -> str:
        if not self.total:
            return "none"
        tenths = self.reached * 1000 // self.total  # 94.99 % is not 95.0 %
        return f"{self.reached}/{self.total} {tenths // 10}.{tenths % 10} %"


@dataclass(frozen=True)
class Gap:
    """Consecutive lines of a function that were not executed."""

    file: str
    first: int
    last: int
    function: str

    def __str__(self) -> str:
        lines = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.file}:{lines} {self.function}"


@dataclass(frozen=True)
class Untaken:
    """An executed line with branches that were never taken."""

    file: str
    line: int
    count: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.count} never taken"


@dataclass
class Area:
    lines: Tally = field(default_factory=Tally)
    branches: Tally = field(default_factory=Tally)
    gaps: list[Gap] = field(default_factory=list)
    untaken: list[Untaken] = field(default_factory=list)


@dataclass
class _Line:
    """A line's counts, summed over the functions that contain it."""

    function: str
    count: int = 0
    branches: dict[Any, int] = field(default_factory=dict)


def _lines(listed: Iterable[Mapping[str, Any]]) -> dict[int, _Line]:
    """The lines by number. A line of a header or macro may be in several functions. It counts as
    covered if one of them covers it; the same holds for its branches."""
    found: dict[int, _Line] = {}
    for entry in listed:
        if entry.get("gcovr/excluded") or entry.get("gcovr/noncode"):
            continue
        line = found.setdefault(entry["line_number"], _Line(entry.get("function_name", "?")))
        line.count += entry["count"]
        for i, branch in enumerate(entry["branches"]):
            if not branch.get("gcovr/excluded"):
                line.branches[i] = line.branches.get(i, 0) + branch["count"]
    return dict(sorted(found.items()))


def _gaps(file: str, lines: Mapping[int, _Line]) -> Iterator[Gap]:
    gap: Optional[Gap] = None
    for number, line in lines.items():
        if gap and (line.count or line.function != gap.function):
            yield gap
            gap = None
        if not line.count:
            gap = Gap(file, gap.first if gap else number, number, line.function)
    if gap:
        yield gap


def _add(area: Area, file: str, lines: Mapping[int, _Line]) -> None:
    for number, line in lines.items():
        area.lines.add(line.count > 0)
        never = [count for count in line.branches.values() if not count]
        for count in line.branches.values():
            area.branches.add(count > 0)
        if never and line.count:
            area.untaken.append(Untaken(file, number, len(never), line.function))
    area.gaps += _gaps(file, lines)


def read(report: Path) -> dict[str, Area]:
    """Reads a JSON report of gcovr. Raises CoverageError for another file."""
    try:
        files = json.loads(report.read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CoverageError(f"{report}: not a report of gcovr's: {error}") from None
    areas = {name: Area() for name in BOUNDS}
    for entry in files:
        area = next((areas[name] for name in areas if entry["file"].startswith(f"{name}/")), None)
        if area:
            _add(area, entry["file"], _lines(entry["lines"]))
    return areas


def table(areas: Mapping[str, Area]) -> str:
    rows = [f"{'area':12} {'lines':>18} {'bound':>6} {'branches':>18} {'bound':>6}"]
    for name, area in areas.items():
        bound = BOUNDS[name]
        branches = f"{bound.branches} %" if bound.branches else "-"
        rows.append(f"{name:12} {area.lines!s:>18} {bound.lines:>4} % "
                    f"{area.branches!s:>18} {branches:>6}")  # fmt: skip
    return "\n".join(rows)


def failures(areas: Mapping[str, Area]) -> list[str]:
    """A sentence for each figure below its bound."""
    found = []
    for name, bound in BOUNDS.items():
        area = areas[name]
        if area.lines.below(bound.lines):
            found.append(f"{name}: lines {area.lines}, below {bound.lines} %")
        if bound.branches and area.branches.below(bound.branches):
            found.append(f"{name}: branches {area.branches}, below {bound.branches} %")
    return found


def exclusions(root: Path = ROOT) -> dict[str, str]:
    """The exclusion markers in the source, with their reasons."""
    found = {}
    for area in BOUNDS:
        for path in sorted([*(root / area).glob("*.c"), *(root / area).glob("*.h")]):
            for i, line in enumerate(path.read_text().splitlines()):
                marker = MARKER.search(line)
                if marker:
                    found[f"{path.relative_to(root)}:{i + 1}"] = marker[1]
    return found
