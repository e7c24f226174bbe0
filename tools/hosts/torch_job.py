# SPDX-License-Identifier: Apache-2.0
"""Jobs of torch.distributed on the hosts of a lab: the same Python program for each rank."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Optional

from tools.hosts.lab import INTERFACE, Lab
from tools.hosts.ports import random_port
from tools.hosts.ranks import Program, Site, packet_site

ROOT = Path(__file__).resolve().parents[2]


class TorchRank(Program):
    """One rank. `printed` has the lines of its standard output."""

    def __init__(self, site: Site, program: Path, args: Sequence[object]) -> None:
        super().__init__(site, [sys.executable, str(program), *map(str, args)])
        self.printed: list[str] = []
        self._readers.append(threading.Thread(target=self._collect, daemon=True))
        self._readers[1].start()

    def _collect(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.printed.append(line.rstrip("\n"))

    def told(self) -> str:
        return "\n".join([*self.printed, *self.lines()][-40:])


def sites(
    folder: Path, lab: Lab, ranks: int, hosts: Optional[int] = None, instances: Optional[int] = 1
) -> list[Site]:
    """A site for each rank; the ranks take turns on the first `hosts` hosts, or on all. HARP
    chooses the number of instances if it is None."""
    made = []
    for rank in range(ranks):
        host = lab.hosts[rank % (hosts or len(lab.hosts))]
        made.append(packet_site(folder / str(rank), host, instances=instances))
    return made


@contextmanager
def torch_job(places: Sequence[Site], program: Path, *args: object) -> Iterator[list[TorchRank]]:
    """Starts a rank at each site, with the variables that torchrun sets. Rank 0 has the store."""
    port = random_port()
    with ExitStack() as stack:
        ranks = []
        for rank, site in enumerate(places):
            site.environment.update(
                RANK=str(rank),
                WORLD_SIZE=str(len(places)),
                MASTER_ADDR=places[0].address,
                MASTER_PORT=str(port),
                GLOO_SOCKET_IFNAME=INTERFACE,
                OMP_NUM_THREADS="1",
                PYTHONPATH=str(ROOT),
                HARP_BUILD_DIR=os.environ.get("HARP_BUILD_DIR") or str(ROOT / "build"),
            )
            ranks.append(stack.enter_context(TorchRank(site, program, args)))
        yield ranks


def end_well(ranks: Sequence[TorchRank], timeout: float) -> None:
    """Waits for the ranks; each must exit with 0."""
    limit = time.monotonic() + timeout
    for number, rank in enumerate(ranks):
        status = rank.wait(max(1.0, limit - time.monotonic()))
        assert status == 0, f"rank {number} ended with {status}:\n{rank.told()}"
