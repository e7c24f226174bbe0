# SPDX-License-Identifier: Apache-2.0
"""Each message of a job is in the histogram of the flow that completed it."""

from __future__ import annotations

import time
from collections.abc import Callable

from jobs import over

from harp.observe.flow_sums import FlowSums
from tools.hosts.jobs import Joint, Site, all_reduce, job
from tools.hosts.ranks import wait_until

COUNTERS = {"S": "messages_out", "R": "messages_in"}


@over("join,", ("wire",))
def test_each_message_is_counted_once(join: Callable[..., Joint]) -> None:
    """The pauses between messages are longer than those between two publications of the flows."""
    joint = join(flows=2)
    with job(joint.sites, joint.host, all_reduce("2M", 1000, 0.05), flowing=3) as running:
        for site in joint.sites:

            def counted(direction: str) -> bool:
                (process,) = site.published()
                flows = [one for one in process.flows if one.direction == direction]
                times = sum(sum(one.message_times) for one in flows)
                assert len(flows) == 2 and all(one.message_times for one in flows)
                assert all(
                    bool(sum(one.message_times)) == bool(one.message_time_ns) for one in flows
                )
                return 3 <= times == process.totals[COUNTERS[direction]]

            for direction in COUNTERS:
                wait_until(
                    lambda: counted(direction),
                    30,
                    "the histograms and the counter of messages differ",
                    running.ranks,
                )


@over("join,", ("wire",))
def test_messages_do_not_count_again_on_a_new_connection(join: Callable[..., Joint]) -> None:
    """The sums over many readings, as `harp exporter` makes them. Messages between the last reading
    of a connection and its end may be missing."""
    joint = join(flows=2)
    sums = [FlowSums() for _ in joint.sites]

    def summed(site: Site, of: FlowSums) -> tuple[dict[str, int], dict[str, int]]:
        (process,) = site.published()
        of.add(process.flows)
        (peer,) = of.peers.values()
        times = {one: sum(peer.messages.get(one, [0])[1:]) for one in COUNTERS}
        return times, {one: process.totals[counter] for one, counter in COUNTERS.items()}

    with job(joint.sites, joint.host, all_reduce("2M", 1000, 0.2), flowing=10) as running:
        for site, of in zip(joint.sites, sums):
            summed(site, of)
        joint.blackhole(running.grows(0), "both")
        running.await_count(0, "flows_replaced", 1)
        for site, of in zip(joint.sites, sums):
            for _ in range(4):
                time.sleep(0.2)
                times, counted = summed(site, of)
            # An entry may be older than the counters that were read with it.
            assert all(times[one] <= counted[one] + 1 for one in COUNTERS), (times, counted)
