# SPDX-License-Identifier: Apache-2.0
"""Counts the stack's instructions for a segment: the same number in every run, on any machine.

harp-segments moves bursts of 32 segments between two stacks in one process, and callgrind counts.
The wire, checksums and copies do not count. The cost of an acknowledgement is given twice: for one
acknowledgement, and for one acknowledged segment.

The time for a byte is that of harp-segments without callgrind, wire and copies included. It is
compared in interleaved pairs of one flow and many flows.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Dict, List, Optional, Sequence, Tuple

from harp.paths import build_dir
from tools.measure.tables import markdown
from tools.measure.verdicts import Verdict

FEW, MANY = 1, 10_000  # connections
ROUNDS = 300
FLOWS = 1000  # whose time for a byte is compared with that of one flow
PAIRS = 9
TIMED_ROUNDS = 10_000
RUN_S = 600
NOT_THE_STACK = ("hand_over", "take")


@dataclass(frozen=True)
class Step:
    """A step of a segment's path: `seen_in` is the function of harp-segments that performs it,
    `entry` the function of the stack below."""

    name: str
    seen_in: str
    entry: str
    most: int  # the project's bound of instructions for a segment; 0: none


STEPS = (
    Step("transmit", "measure_transmit", "harp_stack_flush", 250),
    Step("receive", "measure_receive", "harp_stack_receive", 250),
    Step("send the acknowledgement", "measure_answer", "harp_stack_flush", 0),
    Step("take the acknowledgement", "measure_acknowledge", "harp_stack_receive", 0),
)
BOTH = "acknowledgement, both sides"
BOTH_MOST = 150
GROWTH_MOST = 1.1  # cost with many connections, relative to few
SLOWDOWN_MOST = 1.3  # time for a byte with FLOWS connections, relative to one


@dataclass(frozen=True)
class Target:
    """A target for a row. lone: it counts the instructions of one acknowledgement, instead of those
    for one segment. The project aims at `aim`."""

    row: str
    most: int
    aim: Optional[int] = None
    lone: bool = False


TARGETS = (
    Target("transmit", 200),
    Target("receive", 220, 150),
    Target(BOTH, 48, 40),
    Target("send the acknowledgement", 500, lone=True),
    Target("take the acknowledgement", 400, lone=True),
)


class CannotCount(Exception):
    """The instructions cannot be counted. The text says why."""


@dataclass(frozen=True)
class Cost:
    """The instructions of a step for one segment, and for one acknowledgement."""

    segment: float
    acknowledgement: float


def inclusive(annotated: str) -> Dict[str, int]:
    """The functions of `callgrind_annotate --inclusive=yes`, with their inclusive costs."""
    costs: Dict[str, int] = {}
    for line in annotated.splitlines():
        found = re.match(r"\s*([\d,]+) (?:\([^)]*\)\s+)?\S*?:(\w+)(?: \[|$)", line)
        if found:
            costs.setdefault(found[2], int(found[1].replace(",", "")))
    return costs


def cost_of(step: Step, annotated: str, segments: int, acknowledgements: int) -> Cost:
    costs = inclusive(annotated)
    if step.entry not in costs:
        raise CannotCount(f"callgrind has not recorded {step.entry}: is the build stripped?")
    total = costs[step.entry] - sum(costs.get(name, 0) for name in NOT_THE_STACK)
    return Cost(total / segments, total / acknowledgements)


def _run(args: Sequence[str]) -> str:
    done = subprocess.run(args, capture_output=True, text=True, timeout=RUN_S, check=False)
    if done.returncode:
        raise CannotCount(f"{args[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _program() -> Path:
    program = build_dir() / "tools" / "measure" / "harp-segments"
    if not program.is_file():
        raise CannotCount(f"{program} is missing: build it with meson compile -C {build_dir()}")
    return program


def _ns_for_all(connections: int, rounds: int) -> int:
    return int(_run([str(_program()), str(connections), str(rounds)]).split()[2])


def slowdown(pairs: int = PAIRS, rounds: int = TIMED_ROUNDS) -> float:
    """The time for a byte with FLOWS flows, relative to one flow: the median of interleaved pairs,
    in some ten seconds. Raises CannotCount."""
    return median(_ns_for_all(FLOWS, rounds) / _ns_for_all(1, rounds) for _ in range(pairs))


def count(step: Step, connections: int) -> Cost:
    """Counts a step. Raises CannotCount without callgrind or harp-segments."""
    program = _program()
    if not shutil.which("valgrind"):
        raise CannotCount("valgrind is missing: apt-get install valgrind")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind"
        said = _run(
            [
                *("valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}"),
                *("--collect-atstart=no", f"--toggle-collect={step.seen_in}"),
                *(str(program), str(connections), str(ROUNDS)),
            ]
        )
        segments, acknowledgements, _ = map(int, said.split())
        args = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)]
        return cost_of(step, _run(args), segments, acknowledgements)


@dataclass(frozen=True)
class Row:
    """One line of the table; `costs`: with FEW and with MANY connections."""

    name: str
    costs: Tuple[Cost, Cost]
    most: int

    @property
    def growth(self) -> float:
        return self.costs[1].segment / self.costs[0].segment

    @property
    def met(self) -> bool:
        return (not self.most or self.costs[0].segment <= self.most) and self.growth <= GROWTH_MOST


def rows() -> List[Row]:
    """Counts all steps, in about a minute."""
    made = [Row(step.name, (count(step, FEW), count(step, MANY)), step.most) for step in STEPS]
    sides = [row.costs for row in made if "acknowledgement" in row.name]
    both = tuple(
        Cost(sum(c[i].segment for c in sides), sum(c[i].acknowledgement for c in sides))
        for i in range(2)
    )
    return [*made, Row(BOTH, (both[0], both[1]), BOTH_MOST)]


def flow_verdicts(made: Sequence[Row], slower: float) -> List[Verdict]:
    """Whether many flows cost as much as one. slower: of slowdown()."""
    growth = max(row.growth for row in made)
    return [
        Verdict(
            f"1 to {MANY:,} flows, instructions ≤ {GROWTH_MOST}×: {growth:.2f}×",
            growth <= GROWTH_MOST,
        ),
        Verdict(
            f"1 to {FLOWS:,} flows, time for a byte ≤ {SLOWDOWN_MOST}×: {slower:.2f}×",
            slower <= SLOWDOWN_MOST,
        ),
    ]


def verdicts(made: Sequence[Row]) -> List[Verdict]:
    """Each target with its aim in brackets, and the count with few connections."""
    costs = {row.name: row.costs[0] for row in made}
    found = []
    for target in TARGETS:
        cost = costs[target.row]
        reached = cost.acknowledgement if target.lone else cost.segment
        aim = f" ({target.aim})" if target.aim is not None else ""
        what = "for an ACK" if target.lone else "for a segment"
        text = f"{target.row}, {what} ≤ {target.most}{aim} instructions: {reached:.0f}"
        found.append(Verdict(text, reached <= target.most))
    return found


def table(made: Sequence[Row]) -> str:
    header = ["step", "a segment", "each ACK", f"with {MANY:,} connections", "at most", ""]
    lines = [
        [
            row.name,
            f"{row.costs[0].segment:.0f}",
            f"{row.costs[0].acknowledgement:.0f}" if "acknowledgement" in row.name else "",
            f"{row.growth:.2f}×",
            str(row.most or "–"),
            "met" if row.met else "MISSED",
        ]
        for row in made
    ]
    return markdown(header, lines, right=(1, 2, 3, 4))
