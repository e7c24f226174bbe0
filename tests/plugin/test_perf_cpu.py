# SPDX-License-Identifier: Apache-2.0
"""The CPU time of harp perf is that of all machines of the run, each once."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from perf_ranks import Run, statuses

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts files in /proc: needs root")

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


def test_times_of_two_machines_add_up(tmp_path: Path) -> None:
    assert per_gb(tmp_path, ["one", "two"]) > 0


def test_a_machine_with_several_ranks_counts_once(tmp_path: Path) -> None:
    assert per_gb(tmp_path, ["one", "one"]) == 0


def test_own_names_of_one_machine_are_equal(tmp_path: Path) -> None:
    assert per_gb(tmp_path, ["", ""]) == 0
