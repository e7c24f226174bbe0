# SPDX-License-Identifier: Apache-2.0
"""`harp check` among 64 ranks on 8 hosts. HARP_TEST_FULL=1 runs it, with `-s` to see the times.

It needs minutes and a quiet machine: the hosts of a job have a CPU for each rank, and here they
share those of one machine. test_check_parts.py has the plan of the same check on a clock of its
own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from crowd import Crowd

from tools.hosts.lab import Lab

HOSTS, LOCAL_RANKS = 8, 8
WAIT_S, TIMEOUT_S = 900, 600  # for the ranks to start, and for the rest


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("HARP_TEST_FULL"), reason="starts 64 ranks, in minutes")
@pytest.mark.skipif(os.geteuid() != 0, reason="a lab's hosts need root")
@pytest.mark.timeout(WAIT_S + TIMEOUT_S + 120)
def test_64_ranks_check_each_other(tmp_path: Path) -> None:
    """The time of the check counts from the moment in which all ranks have come."""
    with Lab(hosts=HOSTS, wire="veth-9000") as lab:
        args = ("--wait", str(WAIT_S), "--timeout", str(TIMEOUT_S))
        crowd = Crowd(lab, tmp_path, LOCAL_RANKS, args, longest_s=WAIT_S + TIMEOUT_S + 60)
        result = crowd.run(rendezvous=f"{lab.hosts[0].address}:29555")
    assert result.texts() == [], result.text
    assert set(result.codes) == {0}
    assert [len(one["ranks"]) for one in result.report["hosts"]] == [LOCAL_RANKS] * HOSTS
    assert result.unmeasured() == []
    phases = result.phases()
    joined = phases.pop("looking at each host")
    for name, moment in phases.items():
        if moment >= joined:
            print(f"{moment - joined:6.1f} s: {name}")
    cpus = len(os.sched_getaffinity(0))
    if cpus >= HOSTS * LOCAL_RANKS:
        assert phases["end"] - joined < 60, "64 ranks take less than a minute (docs/operate.md)"
    else:
        print(f"{cpus} CPUs for {HOSTS * LOCAL_RANKS} ranks: the minute is not asked for")
