# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of tools/test --coverage: figures below a bound are detected and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report import BOUNDS, CoverageError, Gap, Untaken, exclusions, failures, read, table


def line(number: int, count: int, *branches: int, function: str = "f", **more: bool) -> Any:
    return {
        "line_number": number, "function_name": function, "count": count, **more,
        "branches": [{"count": taken} for taken in branches],
    }  # fmt: skip


def lines_of(reached: int, total: int, taken: int = 100) -> list[Any]:
    """`total` lines, `reached` of them executed; the first has a hundred branches."""
    first = [1] * taken + [0] * (100 - taken)
    return [line(1, 1, *first), *(line(i + 2, int(i + 1 < reached)) for i in range(total - 1))]


def report(folder: Path, **files: list[Any]) -> Path:
    """A gcovr report of a file x.c in each area. `files` has the lines of areas by the last part of
    their names; other areas are fully covered."""
    listed = {f"{area}/x.c": lines_of(100, 100) for area in BOUNDS}
    for name, lines in files.items():
        listed[next(path for path in listed if path.split("/")[-2] == name)] = lines
    path = folder / "reached.json"
    path.write_text(json.dumps(
        {"files": [{"file": name, "lines": lines} for name, lines in listed.items()]}))  # fmt: skip
    return path


def problems(folder: Path, **files: list[Any]) -> list[str]:
    return failures(read(report(folder, **files)))


def test_full_coverage_passes(tmp_path: Path) -> None:
    assert problems(tmp_path) == []


@pytest.mark.parametrize(("area", "bound"), [("stack", 95), ("engine", 90), ("plugin", 90)])
def test_line_coverage_below_bound_fails(tmp_path: Path, area: str, bound: int) -> None:
    assert problems(tmp_path, **{area: lines_of(10 * bound, 1000)}) == []
    (found,) = problems(tmp_path, **{area: lines_of(10 * bound - 1, 1000)})
    assert area in found and f"lines {10 * bound - 1}/1000 {bound - 1}.9 %" in found


def test_figures_are_not_rounded_up(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, stack=lines_of(9499, 10000))
    assert "94.9 %" in found


def test_branch_coverage_below_bound_fails(tmp_path: Path) -> None:
    assert problems(tmp_path, stack=lines_of(100, 100, taken=85)) == []
    (found,) = problems(tmp_path, stack=lines_of(100, 100, taken=84))
    assert found == "harp/stack: branches 84/100 84.0 %, below 85 %"
    assert problems(tmp_path, engine=lines_of(100, 100, taken=1)) == []


def test_area_without_code_fails(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_text(json.dumps({"files": []}))
    assert len(failures(read(path))) == 4
    assert "none" in table(read(path))


@pytest.mark.parametrize("text", ["", "[]", '{"other": 1}'])
def test_invalid_report_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "none.json"
    path.write_text(text)
    with pytest.raises(CoverageError):
        read(path)


def test_files_outside_areas_are_ignored(tmp_path: Path) -> None:
    path = report(tmp_path)
    found = json.loads(path.read_text())
    found["files"].append({"file": "harp/bench/kernel/kernel_net.c", "lines": lines_of(0, 5000)})
    path.write_text(json.dumps(found))
    assert failures(read(path)) == []


def test_uncovered_lines_and_branches_are_named(tmp_path: Path) -> None:
    lines = [line(3, 1), line(5, 0), line(9, 0), line(10, 2), line(11, 0),
             line(20, 0, function="g"), line(21, 1, 1, 0, 0, function="g")]  # fmt: skip
    area = read(report(tmp_path, stack=lines))["harp/stack"]
    path = "harp/stack/x.c"
    assert area.gaps == [Gap(path, 5, 9, "f"), Gap(path, 11, 11, "f"), Gap(path, 20, 20, "g")]
    assert [str(gap) for gap in area.gaps][:2] == [f"{path}:5-9 f", f"{path}:11 f"]
    assert area.untaken == [Untaken(path, 21, 2, "g")]


def test_line_in_several_functions_counts_once(tmp_path: Path) -> None:
    """A line covered in one function is covered; the same holds for its branches."""
    lines = [line(3, 0, 0, 0, function="v4"), line(3, 2, 2, 0, function="v5"),
             line(3, 1, 0, 1, function="v6"), line(4, 0)]  # fmt: skip
    area = read(report(tmp_path, plugin=lines))["plugin"]
    assert (area.lines.reached, area.lines.total) == (1, 2)
    assert (area.branches.reached, area.branches.total) == (2, 2)


def test_excluded_lines_are_not_counted(tmp_path: Path) -> None:
    lines = lines_of(95, 95)
    lines += [line(200 + i, 0, **{"gcovr/excluded": True}) for i in range(3)]
    lines += [line(300 + i, 0, **{"gcovr/noncode": True}) for i in range(3)]
    lines.append(line(400, 1))
    lines[-1]["branches"] = [{"count": 0, "gcovr/excluded": True}, {"count": 1}]
    area = read(report(tmp_path, stack=lines))["harp/stack"]
    assert (area.lines.total, area.branches.total) == (96, 101)
    assert area.gaps == [] and area.untaken == []


# -- exclusions in the source


MOST_LEFT_OUT = 12


def test_exclusions_are_few_and_explained() -> None:
    found = exclusions()
    assert [place for place, reason in found.items() if len(reason.split()) < 3] == []
    assert len(found) <= MOST_LEFT_OUT


def test_exclusion_markers_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "harp" / "stack"
    folder.mkdir(parents=True)
    (folder / "a.c").write_text(
        "f();  // GCOVR_EXCL_LINE: no such CPU is left\ng();  /* GCOVR_EXCL_BR_LINE */\n"
        "// GCOVR_EXCL_START why\n// GCOVR_EXCL_STOP\n")  # fmt: skip
    reasons = {1: "no such CPU is left", 2: "", 3: "why"}
    assert exclusions(tmp_path) == {f"harp/stack/a.c:{i}": why for i, why in reasons.items()}
