# SPDX-License-Identifier: Apache-2.0
"""Sets up a guest, and runs an all_reduce between it (rank 1) and this machine (rank 0, on the tap
at the other end of the NIC)."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crash_at_each_step
import pytest
from guest import DATA, MANAGEMENT, ROOT, Guest, build_dir

from harp.observe import statfile
from tools.measure.runner import has_xdp

needs_xdp = pytest.mark.skipif(not has_xdp(), reason="this build has no XDP (no clang)")
PORT = 5999
PYTHON = {"PYTHONPATH": str(ROOT), "HARP_BUILD_DIR": str(build_dir())}
RUN_DIR = "/tmp/harp-run"
KEPT = "/tmp/kept.stat"
TIMEOUT = ("--timeout", "60")
LOGGING = {"NCCL_DEBUG": "INFO", "HARP_TIMEOUT_MS": "60000"}

# A process removes its statistics file at its end; a hard link keeps the final counters.
KEEPING = f"""
rm -rf {RUN_DIR} {KEPT}; mkdir -p {RUN_DIR}
until ln {RUN_DIR}/*.stat {KEPT} 2>/dev/null; do sleep 0.3; done & keeper=$!
"$@"; code=$?
kill $keeper 2>/dev/null
exit $code
"""


RECEIVED = f"/sys/class/net/{DATA.name}/statistics/rx_bytes"
# Runs $1 when 4 MB of a job's data have come.
AMID = f"""
enough=$(( $(cat {RECEIVED}) + 4000000 ))
for i in $(seq 3000); do [ $(cat {RECEIVED}) -gt $enough ] && break; sleep 0.1; done
[ $(cat {RECEIVED}) -gt $enough ] && eval "$1"
"""


def linux(guest: Guest) -> tuple[int, ...]:
    """The first two numbers of the guest's kernel."""
    return tuple(map(int, re.findall(r"\d+", guest.check("uname", "-r"))[:2]))


def has_zero_copy(guest: Guest) -> bool:
    """Whether the guest's NIC has AF_XDP's zero-copy mode. virtio-net has it since Linux 6.14, if
    the device uses the kernel's DMA API. That is the case behind an IOMMU."""
    return guest.iommu and linux(guest) >= (6, 14)


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


def state(guest: Guest) -> Any:
    """All state that set-up may change, from the script's function."""
    code = "import json, crash_at_each_step; print(json.dumps(crash_at_each_step.state()))"
    path = f"{ROOT}:{Path(crash_at_each_step.__file__).parent}"
    return json.loads(guest.check(sys.executable, "-c", code, env={**PYTHON, "PYTHONPATH": path}))


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


def all_reduce(*sizes: str) -> list[str]:
    """The arguments of both ranks."""
    rendezvous = f"{MANAGEMENT.peer}:{PORT}"
    return ["all_reduce", *sizes, *TIMEOUT, "--nranks", "2", "--rendezvous", rendezvous]


def guest_rank(args: Sequence[str]) -> list[object]:
    """The command line of the guest's rank: the C program of `harp perf`, because Python takes
    seconds to start in a guest."""
    plugin = build_dir() / "plugin/libnccl-net.so"
    return [build_dir() / "harp/bench/harp-perf", *args, "--rank", "1", "--plugin", plugin]


def lonely_rank() -> list[object]:
    """The command line of a guest's rank that waits for a rank 0 that does not come."""
    return guest_rank(["all_reduce", "--nranks", "2", "--rendezvous", f"{DATA.peer}:9"])


def host_rank(guest: Guest, folder: Path, args: Sequence[str]) -> "subprocess.Popen[str]":
    """Starts rank 0 on this machine, with its configuration in the folder."""
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
    args = all_reduce(*sizes)
    here = host_rank(guest, folder, args)
    environment = {**LOGGING, "HARP_RUN_DIR": RUN_DIR}
    command = [*prefix, *guest_rank([*args, *more])]
    there = guest.run("sh", "-c", KEEPING, "sh", *command, env=environment)
    out, err = here.communicate(timeout=60)
    assert there.code == 0 and here.returncode == 0, f"{there}\n-- the host's rank:\n{out}{err}"
    return Reduced(json.loads(out)["records"], there.out + there.err, _counters(guest, folder))
