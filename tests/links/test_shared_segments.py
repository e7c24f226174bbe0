# SPDX-License-Identifier: Apache-2.0
"""Chunks that wait to be sent together share segments."""

from __future__ import annotations

from collections.abc import Callable

from jobs import over

from tools.hosts.jobs import Joint, job


@over("join,", ("wire",), ("packet",))
def test_chunks_share_segments(join: Callable[..., Joint]) -> None:
    """A chunk of 128 KiB and its header need a bit more than two largest segments."""
    joint = join(flows=2)
    args = ["sendrecv", "-b", "4M", "-e", "4M", "-n", 50, "--step", "4M", "-w", 0]
    with job(joint.sites, joint.host, args, flowing=0) as running:
        running.ends_well()
        sender = running.seen[0]
    # A chunk that was not acknowledged when the counters were read is not counted in bytes yet.
    assert 0.9 < sender["message_bytes_out"] / (sender["chunks_out"] << 17) <= 1
    assert 0 < sender["tx_frames"] < 2.9 * sender["chunks_out"]
