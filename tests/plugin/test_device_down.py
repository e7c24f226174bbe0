# SPDX-License-Identifier: Apache-2.0
"""A device goes down during a job and comes back. The threads of an instance notice that at
different times, which the thread sanitizer checks."""

from __future__ import annotations

from pathlib import Path

from ranks import Site, packet_site, wait_until

from tools.hosts.jobs import all_reduce, job
from tools.hosts.lab import Lab
from tools.hosts.lab_fixtures import lab

__all__ = ["lab"]


def down(site: Site) -> set[int]:
    """The gauge `port_down` of all queues."""
    return {queue["port_down"] for one in site.published() for queue in one.instances}


def test_job_survives_link_down_and_up(lab: Lab, tmp_path: Path) -> None:
    sites = [packet_site(tmp_path / str(host.index), host) for host in lab.hosts]
    args = all_reduce("1M", 400, 0.5, "--verified")
    with job(sites, lab.hosts[0].address, args) as running:
        for host in lab.hosts:
            host.set_link(False)
            running.await_count(host.index, "port_link_changes", 1)
            wait_until(lambda: down(sites[host.index]) == {1}, 20, "no queue is down")
            host.set_link(True)
            lab.await_links()
            wait_until(lambda: down(sites[host.index]) == {0}, 20, "a queue is still down")
        assert running.finish() == [0, 0], [rank.lines() for rank in running.ranks]
        assert not any(running.ranks[0].wrong())
