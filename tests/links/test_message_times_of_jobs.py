# SPDX-License-Identifier: Apache-2.0
"""Each message of a job is in the histogram of the flow that completed it."""

from __future__ import annotations

from collections.abc import Callable

from jobs import over

from tools.hosts.jobs import Joint, all_reduce, job
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
