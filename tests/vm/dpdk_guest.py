# SPDX-License-Identifier: Apache-2.0
"""Sets up a guest, and runs an all_reduce between it (rank 1) and this machine (rank 0, on the tap
at the other end of the NIC)."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from guest import DATA, MANAGEMENT, Guest, build_dir

from harp.observe import statfile
from tools.measure.runner import has_xdp

needs_xdp = pytest.mark.skipif(not has_xdp(), reason="this build has no XDP (no clang)")
PORT = 5999
RUN_DIR = "/tmp/harp-run"
KEPT = "/tmp/kept.stat"
TIMEOUT = ("--timeout", "60")

# A process removes its statistics file at its end; a hard link keeps the final counters.
KEEPING = f"""
rm -rf {RUN_DIR} {KEPT}; mkdir -p {RUN_DIR}
until ln {RUN_DIR}/*.stat {KEPT} 2>/dev/null; do sleep 0.3; done & keeper=$!
"$@"; code=$?
kill $keeper 2>/dev/null
exit $code
"""


@contextmanager
def configured(guest: Guest, *args: str) -> Iterator[None]:
    """Sets the guest up for the block, and undoes that after it."""
    done = guest.run("harp-setup", "--yes", *args)
    assert done.code == 0, str(done)
    try:
        yield
    finally:
        undone = guest.run("harp", "setup", "undo")
    assert undone.code == 0, str(undone)


@dataclass(frozen=True)
class Reduced:
    """The result of an all_reduce: rank 0's records, and the output and final counters of the
    guest's rank."""

    records: list[dict[str, Any]]
    said: str
    counters: dict[str, int]

    @property
    def is_right(self) -> bool:
        return bool(self.records) and all(one["wrong"] == 0 for one in self.records)


def lonely_rank() -> list[object]:
    """The command line of a guest's rank that waits for a rank 0 that does not come."""
    args: list[object] = [build_dir() / "harp/bench/harp-perf", "all_reduce"]
    args += ["--rank", "1", "--nranks", "2", "--rendezvous", f"{DATA.peer}:9"]
    return [*args, "--plugin", build_dir() / "plugin/libnccl-net.so"]


def _host_rank(guest: Guest, folder: Path, args: list[str]) -> "subprocess.Popen[str]":
    (folder / "run").mkdir()
    conf = f"device = packet:{DATA.tap}\naddress = kernel\ntimeout_ms = 60000\n"
    (folder / "ztcp0.conf").write_text(conf)
    environment = {"HARP_CONF_DIR": str(folder), "HARP_RUN_DIR": str(folder / "run")}
    command = [sys.executable, "-m", "harp", "perf", *args, "--rank", "0", "--json", "-"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return guest.host.popen(command, environment, **pipes)


def _counters(guest: Guest, folder: Path) -> dict[str, int]:
    copy = folder / "kept.stat"
    copy.write_bytes(base64.b64decode(guest.check("base64", KEPT)))
    return statfile.read(copy).totals


def reduce_together(
    guest: Guest, folder: Path, sizes: tuple[str, ...], *more: str, prefix: tuple[str, ...] = ()
) -> Reduced:
    """Runs an all_reduce of these sizes; `more` are arguments only for the guest's rank. `prefix`
    precedes its command line."""
    rendezvous = f"{MANAGEMENT.peer}:{PORT}"
    args = ["all_reduce", *sizes, *TIMEOUT, "--nranks", "2", "--rendezvous", rendezvous]
    here = _host_rank(guest, folder, args)
    environment = {"NCCL_DEBUG": "INFO", "HARP_TIMEOUT_MS": "60000", "HARP_RUN_DIR": RUN_DIR}
    # The C program of `harp perf`: Python takes seconds to start in a guest.
    command = [*prefix, build_dir() / "harp/bench/harp-perf", *args, *more, "--rank", "1"]
    command += ["--plugin", build_dir() / "plugin/libnccl-net.so"]
    there = guest.run("sh", "-c", KEEPING, "sh", *command, env=environment)
    out, err = here.communicate(timeout=60)
    assert there.code == 0 and here.returncode == 0, f"{there}\n-- the host's rank:\n{out}{err}"
    return Reduced(json.loads(out)["records"], there.out + there.err, _counters(guest, folder))
