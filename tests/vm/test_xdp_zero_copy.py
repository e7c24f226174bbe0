# SPDX-License-Identifier: Apache-2.0
"""xdp devices in zero-copy mode: the guest's NIC reads and writes HARP's buffers. The default
kernel of ./tools/test --vm is too old for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dpdk_guest import (
    AMID,
    KEEPING,
    LOGGING,
    RUN_DIR,
    Reduced,
    all_reduce,
    configured,
    guest_rank,
    has_zero_copy,
    host_rank,
    needs_xdp,
    reduce_together,
)
from guest import DATA, TEST_S, Guest
from test_xdp_in_guest import kernels_talk, program

pytestmark = [pytest.mark.timeout(TEST_S), needs_xdp]

SIZES = ("-b", "1M", "-e", "1M", "-w", "1")


@pytest.fixture
def nic(guest: Guest) -> Iterator[Guest]:
    """The guest, with a device that insists on zero-copy mode."""
    if not has_zero_copy(guest):
        pytest.skip("the guest's NIC has no zero-copy mode")
    with configured(guest, "--device", f"xdp:{DATA.name},mode=zerocopy"):
        yield guest
    assert program(guest) == ""


def assert_zero_copy(reduced: Reduced) -> None:
    assert reduced.is_right
    assert f"xdp {DATA.name}, {DATA.address}/24 (the kernel's)" in reduced.said
    assert "zero-copy" in reduced.said
    assert reduced.counters["xdp_zero_copy"] == reduced.counters["xdp_sockets"] >= 1
    assert reduced.counters["xdp_invalid_descriptors"] == 0


def test_all_bytes_are_right_beside_the_kernels_tcp(nic: Guest, tmp_path: Path) -> None:
    with kernels_talk(nic):
        sizes = ("-b", "4", "-e", "4M", "-f", "13", "-n", "3", "-w", "1")
        assert_zero_copy(reduce_together(nic, tmp_path, sizes))


def test_job_outlives_a_link_that_goes_down(nic: Guest, tmp_path: Path) -> None:
    blink = f"ip link set {DATA.name} down; sleep 1; ip link set {DATA.name} up"
    amid = nic.start("sh", "-c", AMID, "sh", blink)
    reduced = reduce_together(nic, tmp_path, (*SIZES, "-n", "40"))
    done = nic.wait(amid)
    assert done.code == 0, str(done)
    assert reduced.counters["tcp_retransmits"] > 0, "the link was not down during the job"
    assert_zero_copy(reduced)


def test_killed_rank_leaves_the_queues_to_the_next_one(nic: Guest, tmp_path: Path) -> None:
    """The rank dies while the NIC reads and writes its buffers."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    args = all_reduce(*SIZES, "-n", "1000")
    here = host_rank(nic, first, args)
    amid = nic.start("sh", "-c", AMID, "sh", "pkill -9 -x harp-perf")
    command = ["sh", "-c", KEEPING, "sh", *guest_rank(args)]
    died = nic.run(*command, env={**LOGGING, "HARP_RUN_DIR": RUN_DIR})
    _, said = here.communicate(timeout=120)
    assert nic.wait(amid).code == 0 and died.code != 0, str(died)
    assert here.returncode != 0 and DATA.address in said, said
    with kernels_talk(nic):
        assert_zero_copy(reduce_together(nic, second, (*SIZES, "-n", "20")))
