# SPDX-License-Identifier: Apache-2.0
"""Many ranks on one packet device: eight ranks of a job on each host, and two jobs at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ranks import START_S, Site, packet_site, wait_until

from tools.hosts.jobs import all_reduce, job
from tools.hosts.lab import Lab

LOCAL_RANKS = 8


def sites_of(folder: Path, lab: Lab, local_ranks: int, own_order: bool) -> list[Site]:
    """A site for each rank. The ranks of a host share its file, and so its device and address.

    own_order: the ranks are numbered by host, so that most links of a ring stay on a host. Else
    they alternate between the hosts, so that all links cross the wire.
    """
    found: list[Site] = []
    for host in lab.hosts:
        shared = packet_site(folder / str(host.index), host)
        for rank in range(local_ranks):
            told = {
                "HARP_CONF_DIR": str(shared.folder),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(local_ranks),
            }
            own = shared.folder / f"rank{rank}"
            found.append(Site(own, shared.prefix, told, shared.address))
    if not own_order:
        found = [found[i + host * local_ranks] for i in range(local_ranks) for host in (0, 1)]
    return found


def flow(sites: Sequence[Site]) -> bool:
    """Whether every rank has received messages."""
    come = [one.totals["messages_in"] for site in sites for one in site.published()]
    return len(come) == len(sites) and all(come)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "own_order",
    [
        pytest.param(False, id="in turn", marks=(pytest.mark.slow, pytest.mark.sanitized)),
        pytest.param(True, id="by hosts"),
    ],
)
def test_eight_ranks_share_one_device(lab: Lab, tmp_path: Path, own_order: bool) -> None:
    sites = sites_of(tmp_path, lab, LOCAL_RANKS, own_order)
    with job(sites, sites[0].address, all_reduce("64K", 40, 0.2, "--timeout", 60)) as running:
        running.ends_well()
        assert len(running.ranks) == 2 * LOCAL_RANKS


@pytest.mark.slow
def test_two_jobs_share_one_device(lab: Lab, tmp_path: Path) -> None:
    """The jobs share devices and addresses. Each gets only its own bytes, and all are right."""
    args = all_reduce("64K", 40, 0.01, "--timeout", 60)
    one, other = (sites_of(tmp_path / name, lab, 2, True) for name in ("one", "other"))
    with (
        job(one, one[0].address, args, 0) as first,
        job(other, other[0].address, args, 0) as second,
    ):
        ranks = [*first.ranks, *second.ranks]
        wait_until(lambda: flow(one) and flow(other), START_S, "no messages", ranks)
        first.ends_well()
        second.ends_well()
