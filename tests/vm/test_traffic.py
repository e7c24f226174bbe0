# SPDX-License-Identifier: Apache-2.0
"""NCCL's traffic between a guest and this machine: over the guest's NIC as the kernel has
it, and as HARP alone has it. The peer is HARP on the tap at the other end of the cable."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from guest import DATA, MANAGEMENT, Guest

PORT = 5999
# Odd sizes too: chunks that end anywhere.
SIZES = ("-b", "8", "-e", "1M", "-f", "37", "-n", "2", "-w", "1")
PATIENCE = ("--timeout", "60")

pytestmark = pytest.mark.timeout(900)


@contextmanager
def configured(guest: Guest, *words: str) -> Iterator[None]:
    """A guest that is set up, and as before behind the block."""
    done = guest.run("harp-setup", "--yes", *words)
    assert done.code == 0, str(done)
    try:
        yield
    finally:
        undone = guest.run("harp", "setup", "undo")
    assert undone.code == 0, str(undone)


def host_rank(guest: Guest, folder: Path, words: list[str]) -> "subprocess.Popen[str]":
    """Rank 0, on the tap."""
    (folder / "run").mkdir()
    conf = f"device = packet:{DATA.tap}\naddress = kernel\ntimeout_ms = 60000\n"
    (folder / "ztcp0.conf").write_text(conf)
    environment = {"HARP_CONF_DIR": str(folder), "HARP_RUN_DIR": str(folder / "run")}
    environment["NCCL_DEBUG"] = "INFO"
    command = [sys.executable, "-m", "harp", "perf", *words, "--rank", "0", "--json", "-"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return guest.host.popen(command, environment, **pipes)


def reduce_together(guest: Guest, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """An all_reduce between guest and host: its records, and what the guest's rank said."""
    meeting = f"{MANAGEMENT.peer}:{PORT}"
    words = ["all_reduce", *SIZES, *PATIENCE, "--nranks", "2", "--rendezvous", meeting]
    here = host_rank(guest, folder, words)
    environment = {"NCCL_DEBUG": "INFO", "HARP_TIMEOUT_MS": "60000"}
    there = guest.run("harp", "perf", *words, "--rank", "1", env=environment, timeout=400)
    out, err = here.communicate(timeout=60)
    assert there.code == 0 and here.returncode == 0, f"{there}\n-- the host's rank:\n{out}{err}"
    return json.loads(out)["records"], there.out + there.err


def test_a_nic_that_the_kernel_keeps(guest: Guest, tmp_path: Path) -> None:
    with configured(guest, "--device", f"packet:{DATA.name}"):
        records, said = reduce_together(guest, tmp_path)
    assert len(records) > 3 and all(one["wrong"] == 0 for one in records)
    assert f"packet {DATA.name}, {DATA.address}/24 (the kernel's)" in said


def test_a_nic_of_harps_own(guest: Guest, tmp_path: Path) -> None:
    with configured(guest, "--device", f"dpdk:{DATA.name}"):
        records, said = reduce_together(guest, tmp_path)
    assert len(records) > 3 and all(one["wrong"] == 0 for one in records)
    assert f"dpdk:{DATA.pci_id}" in said and DATA.address in said
