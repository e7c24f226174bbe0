# SPDX-License-Identifier: Apache-2.0
"""Runs the simulator's program, harp-sim, for single scenarios and for thousands of seeds."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from harp.paths import build_dir

SILENCE_S = 120  # timeout in real time; a run takes a fraction of a second

# One flow, incast, a ring over a core, two flows that share a link; then each kind of fault.
NETWORK_25G = "rate_mbps=25000,delay_ns=10000,queue=1048576"
FAULTS = "bytes=20000000,rate_mbps=10000,delay_ns=50000"
SCENARIOS = {
    "clean": f"{FAULTS}",
    "no TSO": f"{FAULTS},tso=0",
    "MTU 9000": f"{FAULTS},mtu=9000",
    "both ways": f"{FAULTS},duplex=1",
    "towards other stacks": f"{FAULTS},trust=0,rto_min_us=200000",
    "drop 0.01 %": f"{FAULTS},drop=0.0001,faulty=1",
    "drop 0.1 %": f"{FAULTS},drop=0.001,faulty=1",
    "drop 1 %": f"{FAULTS},drop=0.01,faulty=1",
    "drop 3 %": f"{FAULTS},drop=0.03,faulty=1",
    "drop 1 %, 2 ms": f"{FAULTS},drop=0.01,faulty=1,delay_ns=1000000",
    "drop 1 %, no SACK": f"{FAULTS},drop=0.01,faulty=1,sack=0",
    "drop 1 %, no TSO": f"{FAULTS},drop=0.01,faulty=1,tso=0",
    "bursts": f"{FAULTS},burst=0.001,burst_end=0.1,faulty=1",
    "tails": f"{FAULTS},tail=0.02,faulty=1",
    "lost acknowledgements": f"{FAULTS},drop=0.1,faulty=2",
    "reordering": f"{FAULTS},reorder=0.01,reorder_ns=30000,faulty=1",
    "duplicates": f"{FAULTS},duplicate=0.01,faulty=1",
    "corruption": f"{FAULTS},corrupt=0.01,faulty=1",
    "changing path MTU": f"{FAULTS},path_mtu=1400,path_mtu_us=5000,faulty=1",
    "slow reader": f"{FAULTS},read_bytes=100000,read_every_us=200,rcvbuf=262144",
    "shallow queue": f"{FAULTS},rate_mbps=25000,rack=1,core_mbps=5000,queue=60000",
    "one flow": "rate_mbps=100000,delay_ns=50000,bytes=0,duration_us=60000,warmup_us=10000,"
    "rcvbuf=33554432,window_scale=10,queue=4194304,nic_queue=2097152",
    "one flow, 1 MiB outstanding": "rate_mbps=100000,delay_ns=50000,bytes=0,duration_us=60000,"
    "warmup_us=10000,outstanding=1048576,queue=4194304,nic_queue=2097152",
    "incast 8 to 1": f"{NETWORK_25G},pattern=1,hosts=9,connections=8,parallel=8,bytes=0,"
    "duration_us=200000,warmup_us=20000",
    "ring of 64": f"{NETWORK_25G},pattern=2,hosts=64,rack=8,core_mbps=100000,steps=16,"
    "bytes=1048576",
    "two flows": "pattern=1,hosts=3,connections=2,parallel=2,bytes=0,duration_us=500000,"
    "warmup_us=100000,rate_mbps=10000,delay_ns=100000,queue=262144",
    "a late second flow": "pattern=1,hosts=3,connections=2,parallel=2,bytes=0,stagger_us=200000,"
    "duration_us=800000,warmup_us=400000,rate_mbps=10000,delay_ns=100000,queue=262144",
}  # fmt: skip

# The kinds of faults: their names in the report, and their descriptions. A run over many seeds must
# contain each.
KINDS = {
    "dropped": "frames lost at random",
    "burst_dropped": "frames lost in bursts",
    "tail_dropped": "last frames of a burst lost",
    "queue_dropped": "frames lost to a full queue",
    "reordered": "frames overtaken by later ones",
    "duplicated": "frames duplicated",
    "corrupted": "frames with a byte changed",
    "mtu_changes": "changes of a path's MTU",
    "mtu_dropped": "frames too big for the path, refused by ICMP",
    "nic_full": "frames that a full NIC refused",
    "reader_stalls": "times that a slow reader left bytes",
    "window_closed": "segments that closed the window",
    "large_segments": "large segments cut by a NIC",
}


class SimError(RuntimeError):
    """The program is not built, refused its arguments, or hangs."""


@dataclass(frozen=True)
class Result:
    """One run. Rates are in Mbit/s of payload, times in ns; violation: the broken rule."""

    seed: int
    spec: str
    ns: int
    connections: int
    bytes: int
    goodput_mbps: int
    frames: int
    events: int
    faults: dict[str, int]
    counters: dict[str, int]
    flow_mbps: list[int]
    steps: dict[str, int] = field(default_factory=dict)
    violation: Optional[str] = None

    def row(self) -> dict[str, int]:
        """The values of the golden table."""
        return {
            "goodput_mbps": self.goodput_mbps,
            "retransmits": self.counters.get("tcp_retransmits", 0),
            "timeouts": self.counters.get("tcp_rto_fired", 0),
        }


def program() -> Path:
    """The path of the built simulator. Raises SimError with the way to build it."""
    path = build_dir() / "tests/sim/harp-sim"
    if not path.is_file():
        raise SimError(f"{path} is missing: build it with meson compile -C {build_dir()}")
    return path


def _result(line: str) -> Result:
    fields: dict[str, Any] = json.loads(line)
    return Result(**fields)


def run(scenario: str, capture: Optional[Path] = None) -> Result:
    """Runs a scenario, by its name or specification. Raises SimError for an unknown one."""
    args = [str(program()), *(["--capture", str(capture)] if capture else [])]
    done = subprocess.run(
        [*args, SCENARIOS.get(scenario, scenario)], capture_output=True, text=True, timeout=600
    )
    if not done.stdout:
        raise SimError(done.stderr.strip() or f"harp-sim ended with {done.returncode}")
    return _result(done.stdout)


def replay(seed: int, capture: Optional[Path] = None) -> Result:
    """Runs the scenario of a seed again."""
    drawn = subprocess.run(
        [str(program()), "--print", str(seed)], capture_output=True, text=True, check=True
    )
    return run(drawn.stdout.strip(), capture)


@dataclass
class _Worker:
    """A process that runs seeds first to last."""

    first: int
    last: int
    done: int = 0
    last_output: float = field(default_factory=time.monotonic)
    rest: bytes = b""

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [str(program()), "--seeds", f"{self.first}-{self.last}"],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )

    @property
    def over(self) -> bool:
        return self.done == self.last - self.first + 1

    def lines(self) -> Iterator[str]:
        """The lines that can be read now. Raises SimError if the program ended early or prints
        nothing for too long."""
        assert self.process.stdout
        ready, _, _ = select.select([self.process.stdout], [], [], 0.1)
        data = os.read(self.process.stdout.fileno(), 1 << 20) if ready else None
        if data == b"" and not self.over:
            raise SimError(f"seed {self.first + self.done}: harp-sim died ({self.process.wait()})")
        if data:
            self.last_output = time.monotonic()
            *whole, self.rest = (self.rest + data).split(b"\n")
            self.done += len(whole)
            yield from (line.decode() for line in whole)
        elif time.monotonic() - self.last_output > SILENCE_S:
            raise SimError(f"seed {self.first + self.done}: no result within {SILENCE_S} s")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def run_seeds(first: int, count: int, jobs: int = 1) -> Iterator[Result]:
    """Runs the scenarios of `count` seeds in `jobs` processes. Yields the results as they arrive.

    Raises SimError with the seed if a run crashes or hangs.
    """
    share = -(-count // jobs)
    starts = range(first, first + count, share)
    workers = [_Worker(start, min(start + share, first + count) - 1) for start in starts]
    try:
        while any(not worker.over for worker in workers):
            for worker in workers:
                if not worker.over:
                    yield from map(_result, worker.lines())
    finally:
        for worker in workers:
            worker.end()


@dataclass
class Total:
    """The sum over many runs."""

    runs: int = 0
    connections: int = 0
    bytes: int = 0
    frames: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    runs_with: Counter[str] = field(default_factory=Counter)
    broken: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.runs += 1
        self.connections += result.connections
        self.bytes += result.bytes
        self.frames += result.frames
        self.faults.update(result.faults)
        self.runs_with.update(kind for kind, n in result.faults.items() if n)
        if result.violation:
            self.broken.append(result)

    def unseen(self) -> list[str]:
        """The kinds of faults that did not occur."""
        return [kind for kind in KINDS if not self.faults[kind]]

    def table(self) -> str:
        """Markdown: each kind of fault, how often it occurred, and in how many runs."""
        rows = [("", "times", "runs")]
        rows += [(text, f"{self.faults[kind]:,}", f"{self.runs_with[kind]:,}")
                 for kind, text in KINDS.items()]  # fmt: skip
        wide = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"| {a:<{wide[0]}} | {b:>{wide[1]}} | {c:>{wide[2]}} |" for a, b, c in rows]
        rule = f"| {'-' * wide[0]} | {'-' * (wide[1] - 1)}: | {'-' * (wide[2] - 1)}: |"
        return "\n".join([lines[0], rule, *lines[1:]])
