# SPDX-License-Identifier: Apache-2.0
"""The golden table: goodput and retransmissions of each scenario. A commit must explain a change.

Runs are deterministic, so values are compared exactly. Each value is a mean over a few seeds: a
single loss affects one run more than most changes of the stack.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from simulator import SCENARIOS, Result, run

FILE = Path(__file__).with_name("golden.json")
SEEDS = 3
LONG = ("incast 8 to 1", "ring of 64")  # one seed suffices for these

Row = dict[str, int]


def results(name: str) -> list[Result]:
    """The runs of a scenario that make up its row."""
    seeds = 1 if name in LONG else SEEDS
    return [run(f"{SCENARIOS[name]},seed={seed}") for seed in range(1, seeds + 1)]


def row_of(runs: list[Result]) -> Row:
    rows = [result.row() for result in runs]
    return {key: sum(row[key] for row in rows) // len(rows) for key in rows[0]}


def read() -> dict[str, Row]:
    table: dict[str, Row] = json.loads(FILE.read_text())
    return table


def write(table: dict[str, Row]) -> None:
    lines = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@dataclass(frozen=True)
class Change:
    """A value that differs from the table."""

    name: str
    key: str
    before: int
    after: int

    def __str__(self) -> str:
        percent = (
            f", {100 * (self.after - self.before) / self.before:+.1f} %" if self.before else ""
        )
        return f"{self.name}: {self.key} was {self.before}, is {self.after}{percent}"


def changes(name: str, before: Row, after: Row) -> list[Change]:
    return [
        Change(name, key, before[key], after[key]) for key in before if before[key] != after[key]
    ]
