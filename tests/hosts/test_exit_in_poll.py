# SPDX-License-Identifier: Apache-2.0
"""A process that exits inside a poll, as in a signal handler, never ends that poll. It ends soon
all the same, and its other instances still close their connections."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from ranks import Failed, Rank, connect, packet_site, preloads

from harp import paths
from tools.hosts.lab import Lab

LINKS = 20
LIMIT_S = 5.0  # far less than a second for each link


@preloads
def test_exit_inside_a_poll_takes_no_time_for_each_link(lab: Lab, tmp_path: Path) -> None:
    # The kernel sends no resets from an address of HARP's own.
    sites = [
        packet_site(tmp_path / str(host.index), host, True, threads="caller", instances=2)
        for host in lab.hosts
    ]
    library = paths.build_dir() / "tests/hosts/libexit_in_poll.so"
    sites[0].environment["LD_PRELOAD"] = str(library)
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        one.init()
        other.init()
        listener = one.listen()
        links = [connect(other, one, listener) for _ in range(LINKS)]
        one.start("receive", links[0].receives, 1, 65536, 60000)
        began = one.signal(signal.SIGUSR1)
        assert one.wait() == 0
        assert time.monotonic() - began < LIMIT_S
        with pytest.raises(Failed):
            other.do("send", links[-1].sends, 1, 65536, 5000)
