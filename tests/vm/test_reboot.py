# SPDX-License-Identifier: Apache-2.0
"""A host that is reset while a rank runs. The files of set-up and of the rank are on a disk, so the
next boot finds them as they were at that moment."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from dpdk_guest import (
    LOGGING,
    RECEIVED,
    all_reduce,
    configured,
    guest_rank,
    host_rank,
    lonely_rank,
    needs_xdp,
    state,
)
from guest import DATA, SLOWNESS, TEST_S, Guest
from test_xdp_in_guest import kernels_talk, program, ssh_session

from harp.observe.statfile import DEFAULT_FOLDER as RUN_DIR

pytestmark = pytest.mark.timeout(TEST_S)

# Waits for the rank's statistics file. sync writes the files of the rank to the disk, too.
RUNS = f"until ls {RUN_DIR}/*.stat; do sleep 0.2; done; sync"
RECEIVES = f'until [ "$(cat {RECEIVED})" -gt 4000000 ]; do sleep 0.2; done; {RUNS}'


def _files_of_ranks(guest: Guest) -> list[str]:
    return guest.check("ls", RUN_DIR).split()


def _missing_steps(guest: Guest) -> set[str]:
    """The kinds of steps that set-up has made and that are not in place."""
    status = json.loads(guest.run("harp", "setup", "status", "--json").out)
    return {step["kind"] for step in status["steps"] if step["state"] != "done"}


def _restore(guest: Guest) -> None:
    guest.check("harp", "setup", "restore")  # as harp-setup.service does
    assert _missing_steps(guest) == set()


def _new_job_says(guest: Guest, folder: Path) -> str:
    """Runs a job whose rank in the guest uses set-up's run folder. Returns that rank's output."""
    folder.mkdir()
    args = all_reduce("-b", "8", "-e", "1M", "-f", "37", "-n", "2", "-w", "1")
    here = host_rank(guest, folder, args)
    done = guest.run(*guest_rank(args), env=LOGGING)
    out, err = here.communicate(timeout=60 * SLOWNESS)
    assert done.code == 0 and here.returncode == 0, f"{done}\n-- the host's rank:\n{out}{err}"
    records = json.loads(out)["records"]
    assert records and all(one["wrong"] == 0 for one in records)
    assert _files_of_ranks(guest) == [], "files of the first rank are left"
    return done.out + done.err


def _reset_under_job(guest: Guest, folder: Path) -> None:
    folder.mkdir()
    args = all_reduce("-b", "1M", "-e", "1M", "-n", "1000000")
    here = host_rank(guest, folder, args)
    guest.start(*guest_rank(args), env=LOGGING)
    guest.check("sh", "-c", RECEIVES)
    assert program(guest) == "xdp"
    guest.reset()
    here.kill()
    here.communicate()


@needs_xdp
def test_reset_under_job_over_xdp(guest_with_disk: Guest, tmp_path: Path) -> None:
    guest = guest_with_disk
    before = state(guest)
    with configured(guest, "--device", f"xdp:{DATA.name}"):
        healthy = guest.check("harp", "doctor")
        _reset_under_job(guest, tmp_path / "first")
        assert program(guest) == ""
        assert _files_of_ranks(guest), "the disk has lost them"
        assert _missing_steps(guest) == {"nic"}
        _restore(guest)
        assert guest.check("harp", "doctor") == healthy
        with kernels_talk(guest), ssh_session(guest, tmp_path):
            said = _new_job_says(guest, tmp_path / "second")
        assert f"xdp {DATA.name}, {DATA.address}/24 (the kernel's)" in said
        assert program(guest) == ""
    assert state(guest) == before
    with kernels_talk(guest):
        time.sleep(0.5)


def test_reset_under_rank_with_dpdk_nic(guest_with_disk: Guest, tmp_path: Path) -> None:
    guest = guest_with_disk
    before = state(guest)
    with configured(guest, "--device", f"dpdk:{DATA.name}"):
        healthy = guest.check("harp", "doctor")
        guest.start(*lonely_rank(), env=LOGGING)
        guest.check("sh", "-c", RUNS)
        guest.reset()
        with kernels_talk(guest):  # the kernel has the NIC again
            assert _files_of_ranks(guest), "the disk has lost them"
            assert _missing_steps(guest) >= {"pages", "bind"}
        _restore(guest)
        assert guest.check("harp", "doctor") == healthy
        said = _new_job_says(guest, tmp_path / "second")
        assert f"dpdk {DATA.pci_id}" in said, said
    assert state(guest) == before
