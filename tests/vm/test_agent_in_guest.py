# SPDX-License-Identifier: Apache-2.0
"""Ranks without capabilities on a guest, whose devices an agent opens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dpdk_guest import AMID, RECEIVED, configured, linux, lonely_rank, needs_xdp, reduce_together
from guest import DATA, TEST_S, Guest
from test_xdp_in_guest import KILLED, kernels_talk, program, ssh_session

pytestmark = pytest.mark.timeout(TEST_S)

SOCKET, PID = "/tmp/agent.sock", "/tmp/agent.pid"
AGENT = f"harp agent --socket {SOCKET} --user root & echo $! > {PID}; wait"
READY = f"for i in $(seq 600); do [ -S {SOCKET} ] && exit; sleep 0.2; done; exit 1"
KILL = f"kill -9 $(cat {PID})"
POWERLESS = ("setpriv", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all",
             "env", f"HARP_AGENT={SOCKET}")  # fmt: skip

# Run amid a job, which has all of its sockets then. Prints the bytes that had come.
KILL_AND_TELL = f"{KILL} && cat {RECEIVED}"
PACKET_SOCKETS = "tail -n +2 /proc/net/packet | wc -l"
PASSES_XDP = (6, 4)  # Linux: a process maps the bound AF_XDP sockets of another one
SIZES = ("-b", "1M", "-e", "1M", "-w", "1")


@contextmanager
def agent(guest: Guest) -> Iterator[None]:
    """Runs an agent. It is killed at the end, unless it has ended."""
    guest.run("rm", "-f", SOCKET)
    number = guest.start("sh", "-c", AGENT)
    try:
        guest.check("sh", "-c", READY)
        yield
    finally:
        guest.run("sh", "-c", KILL)
        guest.wait(number)


def _assert_nothing_left(guest: Guest) -> None:
    assert program(guest) == ""
    assert guest.check("sh", "-c", PACKET_SOCKETS).strip() == "0"


def _check_passes_xdp(guest: Guest) -> None:
    if linux(guest) < PASSES_XDP:
        pytest.skip("this Linux lets no process map the bound sockets of another one")


@pytest.mark.parametrize("scheme", ["packet", pytest.param("xdp", marks=needs_xdp)])
def test_job_outlives_killed_agent(guest: Guest, tmp_path: Path, scheme: str) -> None:
    """The agent is killed while a job runs. The job ends well, and no socket is left."""
    if scheme == "xdp":
        _check_passes_xdp(guest)
    with configured(guest, "--device", f"{scheme}:{DATA.name}"), agent(guest), kernels_talk(guest):
        killed = guest.start("sh", "-c", AMID, "sh", KILL_AND_TELL)
        reduced = reduce_together(guest, tmp_path, (*SIZES, "-n", "40"), prefix=POWERLESS)
        done = guest.wait(killed)
        received = int(guest.read(RECEIVED))
    assert done.code == 0, str(done)
    assert received > int(done.out) + 4_000_000, "the agent was killed too late"
    assert reduced.is_right and len(reduced.records) == 1
    assert f"{scheme} {DATA.name}, {DATA.address}/24 (the kernel's)" in reduced.said
    _assert_nothing_left(guest)


@needs_xdp
def test_killed_agent_and_killed_rank_leave_xdp_nic_to_kernel(guest: Guest, tmp_path: Path) -> None:
    _check_passes_xdp(guest)
    kill_both = KILLED.replace("kill -9 $pid", f"{KILL}; kill -9 $pid")
    with configured(guest, "--device", f"xdp:{DATA.name}"):
        with agent(guest), kernels_talk(guest), ssh_session(guest, tmp_path):
            done = guest.run("sh", "-c", kill_both, "sh", *POWERLESS, *lonely_rank())
            assert " xdp " in done.out and "xdpgeneric" not in done.out, str(done)
            _assert_nothing_left(guest)
        with agent(guest):
            assert reduce_together(guest, tmp_path, (*SIZES, "-n", "2"), prefix=POWERLESS).is_right
    _assert_nothing_left(guest)


@needs_xdp
def test_kernel_that_cannot_pass_bound_xdp_sockets_is_named(guest: Guest) -> None:
    if linux(guest) >= PASSES_XDP:
        pytest.skip("this Linux lets a process map the bound sockets of another one")
    with configured(guest, "--device", f"xdp:{DATA.name}"), agent(guest):
        done = guest.run(*POWERLESS, *lonely_rank())
    assert done.code != 0, str(done)
    assert f"(Linux 6.4 does); set device = packet:{DATA.name}" in done.out + done.err, str(done)
    assert "xdp" not in guest.check("ip", "link", "show", DATA.name)
