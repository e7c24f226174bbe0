# SPDX-License-Identifier: Apache-2.0
"""The CPU time of harp perf is that of all machines of the run, each once; and its percentiles are
the usual ones."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from perf_ranks import Run, statuses

from harp import paths

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts files in /proc: needs root")

FORMAT = "cpu {:012d} 0 0 1000 0 0 0 0 0 0\n"
MOUNT = """
set -e
mount --bind "$1/stat" /proc/stat
[ ! -s "$1/boot_id" ] || mount --bind "$1/boot_id" /proc/sys/kernel/random/boot_id
shift
exec "$@"
"""


@contextmanager
def busier(stat: Path) -> Iterator[None]:
    """Meanwhile the file shows a machine that gets busier all the time, as seen in /proc/stat."""
    ended = threading.Event()
    began = time.monotonic()

    def write() -> None:
        with stat.open("r+b", buffering=0) as file:
            while not ended.wait(0.005):
                ticks = int(1000 * (time.monotonic() - began) ** 2)
                os.pwrite(file.fileno(), FORMAT.format(ticks).encode(), 0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def per_gb(folder: Path, machines: list[str]) -> float:
    """The CPU time of a run whose ranks see these names of their machines; "": the true name. Rank
    0 sees idle CPUs, and rank 1 busy ones."""
    for rank, machine in enumerate(machines):
        (folder / str(rank)).mkdir()
        (folder / str(rank) / "boot_id").write_text(machine)
        (folder / str(rank) / "stat").write_text(FORMAT.format(0))
    file = folder / "out.json"
    args = ["sendrecv", "--kernel", "--sizes", "8M:60", "--rate", "8", "--json", file]

    def starter(rank: int) -> list[str]:
        return ["unshare", "--mount", "sh", "-c", MOUNT, "sh", str(folder / str(rank))]

    with busier(folder / "1/stat"):
        ended = Run(args, len(machines), starter=starter).finish()
    assert statuses(ended) == [0] * len(machines), ended
    (record,) = json.loads(file.read_text())["records"]
    assert record["time_us"] * 60 > 250_000, "too short for the kernel's ticks"
    return float(record["cpu_s_per_gb"])


@needs_root
def test_times_of_two_machines_add_up(tmp_path: Path) -> None:
    assert per_gb(tmp_path, ["one", "two"]) > 0


@needs_root
def test_a_machine_with_several_ranks_counts_once(tmp_path: Path) -> None:
    assert per_gb(tmp_path, ["one", "one"]) == 0


@needs_root
def test_own_names_of_one_machine_are_equal(tmp_path: Path) -> None:
    assert per_gb(tmp_path, ["", ""]) == 0


@pytest.mark.parametrize(
    ("count", "median", "p99"),
    [(1, 1, 1), (2, 1.5, 2), (5, 3, 5), (99, 50, 99), (100, 50.5, 99), (101, 51, 100),
     (200, 100.5, 198), (1000, 500.5, 990)],
)  # fmt: skip
def test_percentiles_of_round_trips(count: int, median: float, p99: float) -> None:
    """By the nearest rank; the median of an even number is the mean of the two in the middle."""
    check = paths.build_dir() / "tests/plugin/percentile_check"
    said = subprocess.run([check, str(count)], capture_output=True, text=True, timeout=60)
    assert list(map(float, said.stdout.split())) == [median, p99]
