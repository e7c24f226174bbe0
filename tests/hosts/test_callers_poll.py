# SPDX-License-Identifier: Apache-2.0
"""The key threads: NCCL's threads poll, or HARP's worker does. The worker polls again if NCCL's
threads stop."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ranks import Rank, connect, packet_site, wait_until

from tools.hosts.lab import Lab
from tools.measure.load import compute_loops

MESSAGES, SIZE = 4000, 16384
TRIES = 12  # the kernel decides when a thread runs, so one try tells little
PAUSE_S = 0.5


def polls(rank: Rank) -> tuple[int, int]:
    """(by callers, all) so far."""
    (process,) = rank.site.published()
    return process.totals["polls_by_caller"], process.totals["polls"]


@pytest.mark.parametrize(
    "threads, who", [("caller", "NCCL's threads"), ("worker", "HARP's worker")]
)
def test_key_sets_who_polls(lab: Lab, tmp_path: Path, threads: str, who: str) -> None:
    sites = [packet_site(tmp_path / str(host.index), host, threads=threads) for host in lab.hosts]
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        link = connect(one.init(), other.init())
        assert all(
            any(f"polled by {who}" in line for line in rank.lines()) for rank in (one, other)
        )
        link.move(MESSAGES // 4, SIZE)
        found = []
        for _ in range(TRIES):
            before = polls(other)
            link.move(MESSAGES, SIZE)
            by_callers, total = (now - then for now, then in zip(polls(other), before))
            # A busy machine and a sanitizer wake the worker beside callers, and a poll finds more.
            slow = os.getloadavg()[0] > (os.cpu_count() or 1) or "SANITIZER_RUNTIME" in os.environ
            if threads == "caller":
                right = by_callers > (0 if slow else 0.5 * total)
            else:  # beside a polling caller, the worker polls only some hundred times
                right = total - by_callers > (0 if slow else MESSAGES // 4)
            found.append((by_callers, total))
            if right:
                return
        pytest.fail(f"polls by callers, and all, in {TRIES} tries: {found}")


def test_worker_polls_again_if_callers_stop(lab: Lab, tmp_path: Path) -> None:
    """A message arrives at a host whose callers have polled, and poll no more."""
    sites = [packet_site(tmp_path / str(host.index), host, threads="caller") for host in lab.hosts]
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        link = connect(one.init(), other.init())
        for _ in range(10):
            link.move(8, SIZE)
            # The rank deregisters the memory after its answer, and before the next one.
            other.do("unlisten", other.listen()[0])
            before = polls(other)
            time.sleep(PAUSE_S / 10)
            link.sender.do("send", link.sends, 1, SIZE, 5000)
            # A short message is sent before its frames arrive.
            wait_until(lambda: polls(other)[1] > before[1], 20, "nobody polls", [other])
            assert polls(other)[0] == before[0]
            link.receiver.do("receive", link.receives, 1, SIZE, 5000)


def test_worker_sleeps_on_crowded_cpu(lab: Lab, tmp_path: Path) -> None:
    """A yield lasts for the time slice of a compute loop, but the kernel wakes a sleeper at once.
    A worker that yields there sleeps after less than one of 300 idle polls."""
    sites = [packet_site(tmp_path / str(host.index), host, threads="worker") for host in lab.hosts]

    def total(counter: str) -> int:
        return sum(site.published()[0].totals[counter] for site in sites)

    with Rank(sites[0]) as one, Rank(sites[1]) as other, compute_loops(lab.hosts[0]):
        link = connect(one.init(), other.init())
        found = []
        for _ in range(TRIES):
            sleeps, idle = total("sleeps"), total("polls_idle")
            link.move(MESSAGES, SIZE)
            found.append((total("sleeps") - sleeps, total("polls_idle") - idle))
            if found[-1][0] > found[-1][1] / 50:
                return
        pytest.fail(f"sleeps, and idle polls, in {TRIES} tries: {found}")
