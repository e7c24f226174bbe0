# SPDX-License-Identifier: Apache-2.0
"""FEATURES.yaml: each status is one that there is, what is claimed is shown by tests that exist.

Tests are found by reading the files, so this needs no build.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
STATUSES = ("supported", "partly", "not")
FIELDS = {"name", "status", "what", "tests"}


@cache
def names_in(path: str) -> frozenset[str]:
    """The tests of a file as pytest names them, without parameters."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for one in inside:
            if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
                found.add(prefix + one.name)
    return frozenset(found)


def _missing(test: str) -> bool:
    path, _, name = test.partition("::")
    if not path.startswith("tests/") or not (ROOT / path).is_file():
        return True
    return name not in names_in(path) if name else not names_in(path)


def feature_problems(feature: Any) -> list[str]:
    if not isinstance(feature, dict) or not FIELDS - {"tests"} <= set(feature) <= FIELDS:
        return [f"{feature}: a feature has {', '.join(sorted(FIELDS))}"]
    name, tests = feature["name"], feature.get("tests", [])
    found = []
    if feature["status"] not in STATUSES:
        found.append(f"{name}: {feature['status']!r} is no status; it is {', '.join(STATUSES)}")
    if not str(feature["what"]).endswith("."):
        found.append(f"{name}: what it does is a sentence")
    if (feature["status"] == "not") == bool(tests):
        found.append(f"{name}: {feature['status']}, with {len(tests)} tests")
    return found + [f"{name}: there is no test {test}" for test in tests if _missing(test)]


def problems(areas: Any) -> list[str]:
    names = [feature.get("name") for area in areas for feature in area["features"]]
    found = [f"{name}: named twice" for name in sorted(set(names)) if names.count(name) > 1]
    for area in areas:
        for feature in area["features"]:
            found += feature_problems(feature)
    return found


def test_claimed_features_have_tests() -> None:
    areas = yaml.safe_load((ROOT / "FEATURES.yaml").read_text())
    found = problems(areas)
    assert not found, "\n".join(found)
    assert sum(len(area["features"]) for area in areas) > 50


GOOD: dict[str, Any] = {
    "name": "x", "status": "supported", "what": "Works.", "tests": ["tests/test_features.py"],
}  # fmt: skip
HERE = "tests/test_features.py::"
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "status": ({"status": "mostly"}, "x: 'mostly' is no status; it is supported, partly, not"),
    "boolean": ({"status": False}, "x: False is no status; it is supported, partly, not"),
    "no test": ({"tests": []}, "x: supported, with 0 tests"),
    "partly, no test": ({"status": "partly", "tests": []}, "x: partly, with 0 tests"),
    "absent, yet tested": ({"status": "not"}, "x: not, with 1 tests"),
    "no sentence": ({"what": "fast"}, "x: what it does is a sentence"),
    "no such file": ({"tests": ["tests/test_no.py"]}, "x: there is no test tests/test_no.py"),
    "no such test": ({"tests": [f"{HERE}test_no"]}, f"x: there is no test {HERE}test_no"),
    "not a test": ({"tests": [f"{HERE}problems"]}, f"x: there is no test {HERE}problems"),
    "no tests in it": ({"tests": ["tests/conftest.py"]}, "x: there is no test tests/conftest.py"),
    "elsewhere": ({"tests": ["harp/cli/main.py"]}, "x: there is no test harp/cli/main.py"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault: str) -> None:
    change, expected = FAULTS[fault]
    assert problems([{"area": "a", "features": [GOOD]}]) == []
    assert expected in problems([{"area": "a", "features": [{**GOOD, **change}]}])


def test_other_planted_faults_are_found() -> None:
    assert "x: named twice" in problems([{"area": "a", "features": [GOOD, GOOD]}])
    assert problems([{"area": "a", "features": [{"name": "x", "what": "Works."}]}])
    assert problems([{"area": "a", "features": [{**GOOD, "colour": "red"}]}])
    of_a_class = {
        **GOOD,
        "tests": ["tests/plugin/test_perf.py::TestCommand::test_missing_program_exits_1"],
    }
    assert not problems([{"area": "a", "features": [of_a_class]}])
