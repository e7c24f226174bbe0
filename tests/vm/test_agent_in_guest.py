# SPDX-License-Identifier: Apache-2.0
"""Ranks without capabilities on a guest, whose devices an agent opens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dpdk_guest import configured, lonely_rank, needs_xdp, reduce_together
from guest import DATA, TEST_S, Guest

pytestmark = pytest.mark.timeout(TEST_S)

SOCKET, PID = "/tmp/agent.sock", "/tmp/agent.pid"
AGENT = f"harp agent --socket {SOCKET} --user root & echo $! > {PID}; wait"
READY = f"for i in $(seq 600); do [ -S {SOCKET} ] && exit; sleep 0.2; done; exit 1"
KILL = f"kill -9 $(cat {PID})"
POWERLESS = ("setpriv", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all",
             "env", f"HARP_AGENT={SOCKET}")  # fmt: skip

RECEIVED = f"/sys/class/net/{DATA.name}/statistics/rx_bytes"
# Kills the agent when 4 MB of a job's data have come: the job has all of its sockets then. Prints
# the bytes that had come.
KILL_LATER = f"""
enough=$(( $(cat {RECEIVED}) + 4000000 ))
for i in $(seq 3000); do [ $(cat {RECEIVED}) -gt $enough ] && break; sleep 0.1; done
{KILL} && cat {RECEIVED}
"""
PACKET_SOCKETS = "tail -n +2 /proc/net/packet | wc -l"


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


def test_job_outlives_killed_agent(guest: Guest, tmp_path: Path) -> None:
    """The agent is killed while a job runs. The job ends well, and no socket is left."""
    with configured(guest, "--device", f"packet:{DATA.name}"), agent(guest):
        killed = guest.start("sh", "-c", KILL_LATER)
        sizes = ("-b", "1M", "-e", "1M", "-n", "40", "-w", "1")
        reduced = reduce_together(guest, tmp_path, sizes, prefix=POWERLESS)
        done = guest.wait(killed)
        received = int(guest.read(RECEIVED))
    assert done.code == 0, str(done)
    assert received > int(done.out) + 4_000_000, "the agent was killed too late"
    assert reduced.is_right and len(reduced.records) == 1
    assert guest.check("sh", "-c", PACKET_SOCKETS).strip() == "0"


@needs_xdp
def test_kernel_that_cannot_pass_bound_xdp_sockets_is_named(guest: Guest) -> None:
    release = guest.check("uname", "-r")
    major, minor = map(int, re.findall(r"\d+", release)[:2])
    if (major, minor) >= (6, 4):
        pytest.skip(f"Linux {release} lets a process map the bound sockets of another one")
    with configured(guest, "--device", f"xdp:{DATA.name}"), agent(guest):
        done = guest.run(*POWERLESS, *lonely_rank())
    assert done.code != 0, str(done)
    assert f"(Linux 6.4 does); set device = packet:{DATA.name}" in done.out + done.err, str(done)
    assert "xdp" not in guest.check("ip", "link", "show", DATA.name)
