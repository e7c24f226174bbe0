# SPDX-License-Identifier: Apache-2.0
"""The lists of mutations: lines broken on purpose, and the tests that must detect them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Optional

import yaml

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).resolve().parent


class MutationError(Exception):
    """An entry does not fit the source. The text says why."""


def _places(lines: list[str], wanted: str) -> list[int]:
    """The indices of lines with this text, without indentation. A comment at a line's end is
    ignored, unless the wanted text has one."""
    return [
        index
        for index, line in enumerate(lines)
        if wanted in (line.strip(), re.sub(r"\s*/\*.*\*/$", "", line.strip()))
    ]


@dataclass(frozen=True)
class Mutation:
    """One line of one file, replaced by a wrong one."""

    area: str  # the name of its list
    name: str
    feature: str  # the name of the broken feature in FEATURES.yaml
    file: str
    line: str  # a whole line, without its indentation and its trailing comment
    becomes: str
    caught_by: tuple[str, ...]  # pytest's names of the tests that must fail, without parameters
    why: str
    after: Optional[str] = None  # a unique line: the mutated line is the next match after it
    needs: Optional[str] = None  # an optional Python module, without which its tests are skipped

    def apply(self, text: str) -> str:
        """The file's text with the line replaced. Raises MutationError if the line is not unique or
        missing."""
        lines = text.splitlines(keepends=True)
        begin = 0 if self.after is None else self._only(lines, self.after) + 1
        index = (self._only(lines, self.line) if self.after is None
                 else self._next(lines, begin))  # fmt: skip
        lines[index] = lines[index].replace(lines[index].strip(), self.becomes)
        return "".join(lines)

    def _next(self, lines: list[str], begin: int) -> int:
        found = [index for index in _places(lines, self.line) if index >= begin]
        if not found:
            raise MutationError(f"{self.name}: {self.file} has no such line after {self.after!r}")
        return found[0]

    def _only(self, lines: list[str], wanted: str) -> int:
        found = _places(lines, wanted)
        if len(found) != 1:
            raise MutationError(f"{self.name}: {self.file} has {wanted!r} {len(found)} times")
        return found[0]


OPTIONAL = {"after", "needs"}
NEEDED = {field.name for field in fields(Mutation)} - {"area"} - OPTIONAL


def read_entry(area: str, entry: Any) -> Mutation:
    """Parses an entry. Raises MutationError if fields are missing or unknown, or if it changes
    nothing."""
    if not isinstance(entry, dict) or not NEEDED <= set(entry) <= NEEDED | OPTIONAL:
        raise MutationError(f"{area}: {entry}: an entry needs {', '.join(sorted(NEEDED))}")
    if not entry["caught_by"] or entry["line"] == entry["becomes"]:
        raise MutationError(f"{entry['name']}: it changes nothing, or names no test")
    return Mutation(area=area, **{**entry, "caught_by": tuple(entry["caught_by"])})


def read_all() -> Iterator[Mutation]:
    for path in sorted(LISTS.glob("*.yaml")):
        for entry in yaml.safe_load(path.read_text()):
            yield read_entry(path.stem, entry)
