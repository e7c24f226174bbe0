# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of floods: an attack, its effect on the all-reduce, and the checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from statistics import median
from typing import Any, Optional

from tools.measure.stats import Summary, ratios
from tools.measure.tables import markdown

RATIO_LEAST = 0.9
MEMORY_MOST = 16 << 20  # bytes that a rank may grow by: pages of its pools not touched before
FLOOD_LEAST_S = 1.0
PHASE_S = 0.25
LONG_PHASE_S = 0.5  # if a connection takes many frames


@dataclass(frozen=True)
class Attack:
    """An attack of the flooder; `frames` is the number of frames a connection."""

    name: str
    what: str
    frames: int

    def connections(self, wanted: int) -> int:
        """The number of connections to make: fewer than wanted if each takes more than two
        frames, for about the same number of frames."""
        return max(1, wanted * 2 // max(self.frames, 2))

    @property
    def phase_s(self) -> float:
        return PHASE_S if self.frames <= 2 else LONG_PHASE_S


@dataclass(frozen=True)
class Plan:
    """connections: for each attack. rate: frames a second."""

    connections: int
    rate: int

    def flood_s(self, attack: Attack) -> float:
        """The length of the flood, both kinds of phases together: a whole number of pairs."""
        frames = 2 * attack.connections(self.connections) * attack.frames
        pair = 2 * attack.phase_s
        return ceil(max(FLOOD_LEAST_S, frames / self.rate) / pair) * pair


@dataclass(frozen=True)
class Phase:
    """The all-reduce during a phase: its rate in GB/s, and the ranks' CPU time in s/s."""

    rate: float
    cpu: float


@dataclass
class Row:
    """An attack over one transport, with the measured pairs of phases."""

    attack: Attack
    transport: str
    victim: list[Phase] = field(default_factory=list)
    nobody: list[Phase] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)  # the flooder's
    grown: int = 0  # bytes of resident memory
    unauthenticated: int = 0
    wrong: Optional[int] = None  # elements; None: not verified

    @property
    def ratio(self) -> Summary:
        return ratios([one.rate for one in self.victim], [one.rate for one in self.nobody])

    @property
    def cost_us(self) -> float:
        """The ranks' CPU time for a frame of the flood, without the job's own CPU time. Other work
        on the machine hardly affects it."""
        pairs = zip(self.victim, self.nobody)
        extra = [one.cpu - one.rate * other.cpu / other.rate for one, other in pairs]
        return median(extra) / self.frames_per_s * 1e6

    @property
    def frames_per_s(self) -> float:
        return float(self.report["frames"] / self.report["seconds"])

    def faults(self) -> list[str]:
        """The missed targets, as text."""
        found: list[str] = []
        if self.ratio.median < RATIO_LEAST:
            found.append(f"the rate fell to {self.ratio.median:.2f}, below {RATIO_LEAST}")
        if self.grown > MEMORY_MOST:
            found.append(f"memory grew by {self.grown >> 10} KiB, above {MEMORY_MOST >> 10}")
        if self.wrong != 0:
            found.append(f"wrong elements: {'not verified' if self.wrong is None else self.wrong}")
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "ratio": asdict(self.ratio),
            "cost_us": self.cost_us,
            "frames_per_s": self.frames_per_s,
            "faults": self.faults(),
        }


HEADER = ("attack", "over", "connections", "frames/s", "answered", "GB/s", "to unused address",
          "ratio", "pairs", "CPU µs a frame",
          "unauthenticated", "grown KiB", "wrong")  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    def cells(row: Row) -> list[str]:
        return [
            f"{row.attack.name}: {row.attack.what}",
            row.transport,
            str(row.report["connections"]),
            f"{row.frames_per_s:.0f}",
            str(row.report["answered"]),
            f"{median(one.rate for one in row.victim):.2f}",
            f"{median(one.rate for one in row.nobody):.2f}",
            f"{row.ratio.median:.2f}",
            str(row.ratio.count),
            f"{row.cost_us:.1f}",
            str(row.unauthenticated),
            str(row.grown >> 10),
            "–" if row.wrong is None else str(row.wrong),
        ]

    return markdown(HEADER, [cells(row) for row in rows], range(2, len(HEADER)))
