# SPDX-License-Identifier: Apache-2.0
"""This rank, the number of ranks and the rendezvous, as launchers give them.

The variables and their order are those of `harp perf` (harp/bench/perf_options.c).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

DEFAULT_PORT = 29411
LARGEST_RANKS = 65536

# mpirun of Open MPI, torchrun, mpirun of MPICH, srun.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


class Unknown(ValueError):
    """The rank or the rendezvous is unknown or wrong. The text says how to give it."""


@dataclass(frozen=True)
class Place:
    """`host` is "unix" for a UNIX socket, and `port` is its path then."""

    rank: int
    ranks: int
    host: str
    port: str


def _number(text: Optional[str], low: int, high: int) -> Optional[int]:
    if text is None or not text.isdecimal():
        return None
    return int(text) if low <= int(text) <= high else None


def _from_launcher(environment: Mapping[str, str]) -> tuple[Optional[int], Optional[int]]:
    for names in _LAUNCHERS:
        rank = _number(environment.get(names[0]), 0, LARGEST_RANKS - 1)
        ranks = _number(environment.get(names[1]), 1, LARGEST_RANKS)
        if rank is not None and ranks is not None:
            return rank, ranks
    return None, None


def _address(rendezvous: Optional[str], environment: Mapping[str, str]) -> tuple[str, str]:
    if rendezvous:
        host, _, port = rendezvous.partition(":") if rendezvous.startswith("unix:") else (
            rendezvous.rpartition(":")
        )  # fmt: skip
        return host, port
    host = environment.get("MASTER_ADDR") or environment.get("SLURM_LAUNCH_NODE_IPADDR") or ""
    # torchrun's own store listens on MASTER_PORT.
    before = _number(environment.get("MASTER_PORT"), 1, 65534)
    return host, str(DEFAULT_PORT if before is None else before + 1)


def find(
    rank: Optional[int],
    ranks: Optional[int],
    rendezvous: Optional[str],
    environment: Mapping[str, str],
) -> Place:
    """The place of this process in the job. Options win over variables. Raises Unknown."""
    told_rank, told_ranks = _from_launcher(environment)
    rank = told_rank if rank is None else rank
    ranks = told_ranks if ranks is None else ranks
    if rank is None or ranks is None:
        raise Unknown(
            "the rank is unknown: give --rank and --ranks, or start it by mpirun, torchrun or srun"
        )
    if ranks < 2:
        raise Unknown("one rank has no other to check with: start more, or run harp doctor")
    if rank >= ranks:
        raise Unknown(f"--rank {rank} of {ranks} ranks: ranks count from 0")
    host, port = _address(rendezvous, environment)
    if not host:
        raise Unknown(
            "the rendezvous is unknown: give --rendezvous HOST:PORT, an address of rank 0"
        )
    if host != "unix" and _number(port, 1, 65535) is None:
        raise Unknown(f"--rendezvous {host}:{port}: a port is a number from 1 to 65535")
    return Place(rank, ranks, host, port)
