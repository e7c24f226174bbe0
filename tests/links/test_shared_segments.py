# SPDX-License-Identifier: Apache-2.0
"""Chunks that wait to be sent together share segments."""

from __future__ import annotations

from collections.abc import Callable

from jobs import over
from ranks import Rank, connect

from tools.hosts.jobs import Joint


@over("join,", ("wire",), ("packet",))
def test_chunks_share_segments(join: Callable[..., Joint]) -> None:
    """A chunk of 128 KiB and its header need a bit more than two largest segments, and three if
    chunks share none. Bare acknowledgements count, too. The ranks still live when their counters
    are read, so every send is counted."""
    sites = join(flows=2).sites
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        connect(one.init(), other.init()).move(50, 4 << 20)
        (process,) = sites[0].published()
        assert one.warnings == other.warnings == []
    sender = process.totals
    assert sender["message_bytes_out"] == sender["chunks_out"] << 17
    assert 0 < sender["tx_frames"] < 3 * sender["chunks_out"]
