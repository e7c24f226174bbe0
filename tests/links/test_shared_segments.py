# SPDX-License-Identifier: Apache-2.0
"""Messages that wait to be sent together share segments."""

from __future__ import annotations

from collections.abc import Callable

from jobs import over

from tools.hosts.jobs import Joint, job


@over("join,", ("packet",))
def test_messages_that_exceed_a_segment_share_segments(join: Callable[..., Joint]) -> None:
    """A message of 64 KiB and its header need a bit more than a largest segment."""
    joint = join(flows=1)
    words = ["sendrecv", "-b", "64K", "-e", "64K", "-n", 4000, "-w", 0]
    with job(joint.sites, joint.host, words, flowing=0) as running:
        running.ends_well()
        sender = running.seen[0]
    assert sender["messages_out"] >= 4000
    assert sender["tx_frames"] < 1.8 * sender["messages_out"]
