# SPDX-License-Identifier: Apache-2.0
"""The lists of mutations match the present source and tests. Nothing is built."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

from mutations import ROOT, Mutation, MutationError, read_all, read_entry  # noqa: E402

LEAST = 60
# Every existing feature of these areas needs a mutation ...
PROTECTED = ("TCP", "IP, ARP, ICMP", "bugs that other stacks had")
# ... and the features of other areas that reject peers or protect data.
GUARDS = {"configuration files", "claims", "the peers allow list", "unauthenticated peers",
          "contradictory chunks", "proof of the shared key", "foreign handles",
          "software checksums", "end-to-end payload checksums", "deregistration of memory in use",
          "replacement of a dead flow", "a paused or slow peer does not fail a link"}  # fmt: skip
# Traffic as a whole tests these; their parts are features of their own.
SHOWN_BY_TRAFFIC = {"random and mutated frames", "transfers over impaired paths",
                    "interoperation with Linux's TCP", "the stack as a library",
                    "TCP_INFO"}  # fmt: skip


@cache
def features() -> dict[str, tuple[str, bool]]:
    """Area of each feature, and whether HARP has it."""
    areas = yaml.safe_load((ROOT / "FEATURES.yaml").read_text())
    return {feature["name"]: (area["area"], feature["status"] != "not")
            for area in areas for feature in area["features"]}  # fmt: skip


@cache
def named_in(path: str) -> frozenset[str]:
    if not (ROOT / path).is_file():
        return frozenset()
    return frozenset(_names(ast.parse((ROOT / path).read_text()).body))


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield from (f"{node.name}::{name}" for name in _names(node.body))


def problems_of(mutation: Mutation) -> list[str]:
    found = []
    if mutation.feature not in features():
        found.append(f"{mutation.name}: FEATURES.yaml has no {mutation.feature!r}")
    for test in mutation.caught_by:
        path, _, name = test.partition("::")
        if name not in named_in(path):
            found.append(f"{mutation.name}: there is no test {test}")
    try:
        mutation.apply((ROOT / mutation.file).read_text())
    except (MutationError, OSError) as error:
        found.append(f"{mutation.name}: {error}")
    return found


def test_every_entry_matches_sources_and_tests() -> None:
    listed = list(read_all())
    found = [problem for mutation in listed for problem in problems_of(mutation)]
    named = Counter(mutation.name for mutation in listed)
    found += [f"{name}: named twice" for name, count in named.items() if count > 1]
    changes = Counter((one.file, one.line, one.after, one.becomes) for one in listed)
    found += [f"twice the same change: {change}" for change, count in changes.items() if count > 1]
    assert not found, "\n".join(found)
    assert len(listed) >= LEAST


def test_every_protection_has_a_mutation() -> None:
    broken = {mutation.feature for mutation in read_all()}
    assert GUARDS <= set(features())
    guarded = GUARDS | {name for name, (area, there) in features().items()
                        if there and area in PROTECTED}  # fmt: skip
    missing = sorted(guarded - broken - SHOWN_BY_TRAFFIC)
    assert not missing, f"no list in tests/mutations breaks: {'; '.join(missing)}"


# -- the checks themselves


GOOD = Mutation(
    area="a", name="x", feature="RFC 826, ARP", file="harp/stack/limit.h",
    line="return limit->count++ < most;", becomes="return true;",
    caught_by=("tests/mutations/test_mutation_lists.py::test_every_entry_matches_sources_and_tests",),
    why="",
)  # fmt: skip
FAULTS: dict[str, dict[str, Any]] = {
    "no such line": {"line": "return limit->count;"},
    "a part of a line": {"line": "return limit->count++"},
    "twice": {"line": "}"},
    "no such file": {"file": "harp/stack/none.c"},
    "no such feature": {"feature": "RFC 1149"},
    "no such test": {"caught_by": ("tests/mutations/test_mutation_lists.py::test_none",)},
    "a whole file": {"caught_by": ("tests/mutations/test_mutation_lists.py",)},
    "behind no such line": {"after": "never"},
    "nothing behind it": {"after": "return limit->count++ < most;"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault: str) -> None:
    assert problems_of(GOOD) == []
    assert problems_of(dataclasses.replace(GOOD, **FAULTS[fault])) != []


def test_mutation_changes_one_line() -> None:
    text = (ROOT / GOOD.file).read_text()
    changed = GOOD.apply(text)
    before, after = text.splitlines(), changed.splitlines()
    different = [i for i, pair in enumerate(zip(before, after)) if pair[0] != pair[1]]
    assert len(before) == len(after) and len(different) == 1
    assert after[different[0]] == "  return true;"


def test_after_selects_next_matching_line() -> None:
    text = "a\n  x\nb\n  x\nc\n  x\n"
    behind = dataclasses.replace(GOOD, line="x", becomes="y", after="b")
    assert behind.apply(text) == "a\n  x\nb\n  y\nc\n  x\n"


@pytest.mark.parametrize("change", [{"why": None}, {"colour": "red"}, {"becomes": GOOD.line},
                                    {"caught_by": []}])  # fmt: skip
def test_malformed_entry_is_refused(change: dict[str, Any]) -> None:
    entry = dataclasses.asdict(GOOD)
    entry.pop("area"), entry.pop("after"), entry.pop("needs")
    assert read_entry("a", entry) == GOOD
    entry.update(change)
    with pytest.raises(MutationError):
        read_entry("a", {key: value for key, value in entry.items() if value is not None})
