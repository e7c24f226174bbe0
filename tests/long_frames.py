# SPDX-License-Identifier: Apache-2.0
"""The long frames of a rank, as the preloaded library of tests/hosts/little_memory.c sees them."""

from __future__ import annotations

from pathlib import Path

from ranks import Rank, connect, packet_site

from harp import paths
from tools.hosts.lab import Lab

MIB = 1 << 20
MESSAGES = 64  # of 1 MiB: about 1000 long frames


def long_frames(lab: Lab, folder: Path, lack: str, agent: str = "") -> str:
    """Moves messages from a host that lacks `lack`. Returns its long frames, as in
    little_memory.c. agent: the socket of the agent that opens the device; "": the rank opens it."""
    sites = [packet_site(folder / str(host.index), host) for host in lab.hosts]
    log = folder / "frames"
    library = paths.build_dir() / "tests/hosts/liblittle_memory.so"
    sites[0].environment.update(
        {
            "LD_PRELOAD": str(library),
            "HARP_AGENT": agent,
            "LITTLE_MEMORY": lack,
            "LITTLE_MEMORY_LOG": str(log),
        }
    )
    with Rank(sites[0]) as one, Rank(sites[1]) as other:
        connect(one.init(), other.init()).move(MESSAGES, MIB)
    return log.read_text()
