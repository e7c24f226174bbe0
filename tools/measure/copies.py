# SPDX-License-Identifier: Apache-2.0
"""How fast this machine copies, by the distance (destination - source) modulo the page size.

On some processors, `rep movsb` is many times slower at distances from 1 to 63. The kernel copies
with it from and to user memory. harp-copies measures; see there for the ways to copy.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harp.paths import build_dir
from tools.measure.records import describe_host
from tools.measure.tables import markdown

SCHEMA = "harp.copies/1"
DISTANCES = (0, 1, 28, 63, 64, 128, 2048, 4032, 4095)
TRAP = (1, 28, 63)  # distances at which some processors are slow
MILLISECONDS = 40
SLOW = 0.5  # of the usual rate
WAYS = {
    "movsb": "`rep movsb`",
    "memcpy": "memcpy of the C library",
    "kernel-in": "the kernel, from user memory",
    "kernel-out": "the kernel, to user memory",
}


class CannotCopy(Exception):
    """The copies cannot be measured. The text says why."""


@dataclass(frozen=True)
class Copies:
    """A way to copy, with GB/s (10^9 bytes) by distance."""

    way: str
    rates: dict[int, float]

    @property
    def slowdown(self) -> float:
        """The lowest rate at the distances of the trap, relative to the median at the others."""
        usual = median(rate for distance, rate in self.rates.items() if distance not in TRAP)
        return min(self.rates[distance] for distance in TRAP) / usual


def parse(said: str) -> list[Copies]:
    """The output of harp-copies."""
    rates: dict[str, dict[int, float]] = {}
    for line in said.splitlines():
        way, distance, rate = line.split()
        rates.setdefault(way, {})[int(distance)] = float(rate)
    return [Copies(way, by_distance) for way, by_distance in rates.items()]


def measure(milliseconds: int = MILLISECONDS) -> list[Copies]:
    """Measures all ways to copy, in a few seconds. Raises CannotCopy."""
    program = build_dir() / "tools" / "measure" / "harp-copies"
    if not program.is_file():
        raise CannotCopy(f"{program} is missing: build it with meson compile -C {build_dir()}")
    args = [str(program), str(milliseconds), *map(str, DISTANCES)]
    done = subprocess.run(args, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise CannotCopy(f"harp-copies ended with {done.returncode}: {done.stderr.strip()}")
    return parse(done.stdout)


def table(found: list[Copies]) -> str:
    """GB/s, a column for each distance."""
    header = ["GB/s at distance", *map(str, DISTANCES)]
    lines = [
        [WAYS[one.way], *(f"{one.rates[distance]:.1f}" for distance in DISTANCES)] for one in found
    ]
    return markdown(header, lines, range(1, len(header)))


def remark(found: list[Copies]) -> str:
    """Says which ways to copy are slow at the distances of the trap."""
    slow = [
        f"{WAYS[one.way]} reaches {one.slowdown:.2f} of its usual rate"
        for one in found
        if one.slowdown < SLOW
    ]
    if not slow:
        return "No way to copy is slow at distances from 1 to 63 on this machine."
    return f"At distances from 1 to 63, {'; '.join(slow)}."


def save(found: list[Copies], path: Path) -> None:
    copies = [{"way": one.way, "rates_gbs": one.rates, "slowdown": one.slowdown} for one in found]
    document = {"schema": SCHEMA, "host": describe_host(), "copies": copies}
    path.write_text(json.dumps(document, indent=1) + "\n")
