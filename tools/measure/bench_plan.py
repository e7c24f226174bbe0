# SPDX-License-Identifier: Apache-2.0
"""What the benchmark measures: its rows, and the targets for their ratios."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Optional

from tools.measure.shared import DIRECTIONS, SHARED
from tools.measure.tables import size_text

KIB, MIB = 1 << 10, 1 << 20
KERNEL, HARP, XDP, IPERF, RAW = "kernel-tcp", "harp-packet", "harp-xdp", "iperf3", "raw"
ETHDEV = tuple(f"harp-ethdev {direction}" for direction in DIRECTIONS)
RAW_SHARED = tuple(
    f"raw {direction}{copied}" for direction in DIRECTIONS for copied in ("", ", copied")
)

FIXED_GBIT = 10.0
STREAM_SIZES = (64 * KIB, 128 * KIB, 256 * KIB, MIB, 8 * MIB)
TRIP_SIZES = (8, 4 * KIB, 64 * KIB)
REDUCE_SIZES = (8, 4 * KIB, *STREAM_SIZES)


@dataclass(frozen=True)
class Metric:
    """A figure of records; `field` is its name there."""

    field: str
    text: str
    rises: bool  # more is better


RATE = Metric("algbw_gbs", "GB/s", True)
TIME = Metric("time_us", "time", False)
P50 = Metric("p50_us", "p50", False)
P99 = Metric("p99_us", "p99", False)
CPU = Metric("cpu_s_per_gb", "CPU s/GB", False)


def metric_of(op: str) -> Metric:
    """The figure by which two transports are compared."""
    return {"pingpong": P50, "all_reduce": TIME}.get(op, RATE)


def _short(size: int) -> str:
    return size_text(size).replace(" ", "").replace("iB", "")


@dataclass(frozen=True)
class Row:
    """One operation with one message size on one wire. busy: each core also runs a compute loop.
    gbit: the rate that is offered, Gbit/s; None: as fast as possible."""

    wire: str
    op: str
    size: int
    hosts: int = 2
    busy: bool = False
    gbit: Optional[float] = None

    @property
    def name(self) -> str:
        """The name for --only."""
        parts = [self.wire, self.op, _short(self.size)]
        parts += [f"{self.hosts}-hosts"] if self.op == "all_reduce" else []
        parts += ["busy"] if self.busy else []
        parts += [f"{self.gbit:.0f}-gbit"] if self.gbit else []
        return " ".join(parts)

    @property
    def has_xdp(self) -> bool:
        """Whether the xdp port is measured, too: on wires without offloads, as XDP has none."""
        return self.wire in SINGLE and self.op in ("sendrecv", "pingpong") and not self.busy

    @property
    def operation(self) -> str:
        """The operation with its size, as a table shows it."""
        text = f"{self.op} {size_text(self.size)}"
        text += f", {self.hosts} hosts" if self.hosts > 2 else ""
        text += ", busy" if self.busy else ""
        return text + (f", {self.gbit:.0f} Gbit/s" if self.gbit else "")

    @property
    def title(self) -> str:
        wire = f"{self.wire} (shared memory)" if self.wire in SHARED else self.wire
        return f"{wire}, {self.operation}"

    def matches(self, pattern: str) -> bool:
        """Whether each word of the pattern, with * and ?, is a word of the row's name."""
        mine = self.name.lower().split()
        return all(
            any(fnmatchcase(word, part) for word in mine) for part in pattern.lower().split()
        )


@dataclass(frozen=True)
class Target:
    """A target: the ratio of `ours` to `theirs` must be at least, or at most, `bound`. The project
    aims at `aim`, if there is one."""

    row: Row
    metric: Metric
    ours: str
    theirs: str
    bound: float
    aim: Optional[float] = None

    def text(self) -> str:
        sign = "≥" if self.metric.rises else "≤"
        aim = f" ({self.aim}×)" if self.aim is not None else ""
        ours = "" if self.ours == HARP else f" of {self.ours}"
        return f"{self.row.title}: {self.metric.text}{ours} {sign} {self.bound}×{aim} {self.theirs}"

    def met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.metric.rises else ratio <= self.bound


@dataclass(frozen=True)
class Plan:
    """The extent of a measurement."""

    rows: tuple[Row, ...]
    pairs: int
    seconds: float  # of each timed pass
    yardstick_s: float  # of iperf3, and of raw frames; 0: without them
    targets: tuple[Target, ...]

    def limited(self, patterns: Sequence[str], pairs: Optional[int]) -> Plan:
        """The plan with only the rows that match a pattern, if there are any, and so many pairs."""
        rows = tuple(
            row for row in self.rows if not patterns or any(row.matches(one) for one in patterns)
        )
        targets = tuple(target for target in self.targets if target.row in rows)
        return replace(self, rows=rows, targets=targets, pairs=pairs or self.pairs)


def make_rows(
    wire: str, op: str, sizes: Iterable[int], hosts: int = 2, busy: bool = False
) -> list[Row]:
    return [Row(wire, op, size, hosts, busy) for size in sizes]


def _fixed(wire: str) -> Row:
    return Row(wire, "sendrecv", MIB, gbit=FIXED_GBIT)


def _on(wires: Sequence[str], op: str, sizes: Sequence[int], hosts: int = 2) -> list[Row]:
    return [row for wire in wires for row in make_rows(wire, op, sizes, hosts)]


def _busy(wire: str) -> list[Row]:
    sizes = {"sendrecv": MIB, "pingpong": 8, "all_reduce": 64 * KIB}
    return [Row(wire, op, size, busy=True) for op, size in sizes.items()]


WHOLE = ("veth-1500", "veth-9000")
SINGLE = ("veth-1500-nooff", "veth-9000-nooff")

QUICK_ROWS = (
    *_on(WHOLE, "sendrecv", STREAM_SIZES),
    *_on(SINGLE, "sendrecv", (64 * KIB, MIB)),
    *_on(SINGLE[:1], "pingpong", TRIP_SIZES[:1]),
    *map(_fixed, WHOLE),
    *_on(WHOLE, "sendrecv_bidir", (MIB,)),
    *_on(WHOLE, "pingpong", TRIP_SIZES),
    *_on(WHOLE[:1], "all_reduce", REDUCE_SIZES),
    *_on(WHOLE[:1], "all_reduce", REDUCE_SIZES, 4),
    *_busy("veth-1500"),
    *_on(tuple(SHARED), "sendrecv", (64 * KIB, MIB, 8 * MIB)),
    *_on(tuple(SHARED), "pingpong", (8,)),
)
FULL_ROWS = (
    *QUICK_ROWS,
    *_on(SINGLE, "sendrecv", (128 * KIB, 256 * KIB, 8 * MIB)),
    *_on(SINGLE, "sendrecv_bidir", (MIB,)),
    *_on(SINGLE[:1], "pingpong", TRIP_SIZES[1:]),
    *_on(SINGLE[1:], "pingpong", TRIP_SIZES),
    *_on((*WHOLE[1:], *SINGLE), "all_reduce", REDUCE_SIZES),
    *_on((*WHOLE[1:], *SINGLE), "all_reduce", REDUCE_SIZES, 4),
    *_busy("veth-9000"),
)


# -- targets

# Of HARP over kernel TCP, by size: bound and aim.
WHOLE_RATES = {
    64 * KIB: (1.3, None),
    256 * KIB: (1.1, None),
    MIB: (1.0, None),
    8 * MIB: (0.95, 1.0),
}
SINGLE_RATES = {64 * KIB: (0.9, None), MIB: (0.8, 1.0)}
XDP_RATES = {"veth-1500-nooff": (1.15, 1.4), "veth-9000-nooff": (1.0, None)}  # of 1 MiB
SHARED_RATES = {"vhost-1500": 5.0, "vhost-9000": 1.5, "vhost-tso": 1.2}


def _targets_of(row: Row) -> list[Target]:
    if row.wire in SHARED:
        return _shared_targets(row)
    found: list[tuple[Metric, float, Optional[float]]] = []
    if row.busy:
        bound = {"sendrecv": 0.9, "pingpong": 1.2, "all_reduce": 1.1}[row.op]
        found.append((metric_of(row.op), bound, None))
    elif row.gbit:
        found.append((CPU, 1.0, 0.8))
    elif row.op == "sendrecv":
        rates = WHOLE_RATES if row.wire in WHOLE else SINGLE_RATES
        if row.size in rates:
            found.append((RATE, *rates[row.size]))
        found += [(CPU, 1.0, None)] if row.wire in WHOLE else []
    elif row.op == "sendrecv_bidir" and row.wire in WHOLE:
        found.append((RATE, 1.0, None))
    elif row.op == "pingpong" and row.size <= 4 * KIB:
        found += [(P50, 0.8, None), (P99, 1.0, 0.7)]
    elif row.op == "all_reduce":
        found.append((TIME, 1.0, 0.8) if row.hosts == 2 else (TIME, 1.1, None))
    targets = [Target(row, metric, HARP, KERNEL, bound, aim) for metric, bound, aim in found]
    return targets + (_xdp_targets(row) if row.has_xdp else [])


def _xdp_targets(row: Row) -> list[Target]:
    if row.op == "pingpong":
        return [Target(row, P50, XDP, KERNEL, 0.8)] if row.size <= 4 * KIB else []
    if row.size != MIB:
        return []
    bound, aim = XDP_RATES[row.wire]
    targets = [
        Target(row, RATE, XDP, KERNEL, bound, aim),
        Target(row, CPU, XDP, KERNEL, 0.9),
    ]
    over_packet = Target(row, RATE, XDP, HARP, 1.4)
    return targets + ([over_packet] if row.wire == SINGLE[0] else [])


def _shared_targets(row: Row) -> list[Target]:
    """Each direction must meet the target of a rate."""
    if row.op == "pingpong":
        return [
            Target(row, P50, ETHDEV[0], KERNEL, 0.2),
            Target(row, P99, ETHDEV[0], KERNEL, 0.4),
        ]
    bound = SHARED_RATES[row.wire]
    return [Target(row, RATE, ours, KERNEL, bound) for ours in ETHDEV]


def _targets(rows: Sequence[Row]) -> tuple[Target, ...]:
    return tuple(target for row in rows for target in _targets_of(row))


QUICK = Plan(QUICK_ROWS, 7, 0.4, 0, _targets(QUICK_ROWS))
FULL = Plan(FULL_ROWS, 9, 1.0, 2, _targets(FULL_ROWS))
