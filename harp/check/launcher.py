# SPDX-License-Identifier: Apache-2.0
"""This rank, the number of ranks and the rendezvous, as launchers give them.

The variables and their order are those of `harp perf` (harp/bench/perf_options.c and slurm.c).
"""

from __future__ import annotations

import re
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
    """`host` is "unix" for a UNIX socket, and `port` is its path then. Rank 0 listens on `host`, or
    `everywhere`: on all of its addresses."""

    rank: int
    ranks: int
    host: str
    port: str
    everywhere: bool = False


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


def first_node(nodes: str) -> str:
    """The first name of a list of Slurm's, such as gpu[03-05,9]-ib,login; "": an empty list."""
    name = re.match(r"(?:[^,\[]|\[[^]]*\])*", nodes)
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", name[0]) if name else ""


def _node_of_rank_0(rank: int, ranks: int, environment: Mapping[str, str]) -> str:
    """The first node of the Slurm step if its tasks are the ranks, else the first node of the job,
    because mpirun may start its helpers in a step that lacks a node; "" without a list of nodes.
    srun's own place (SLURM_LAUNCH_NODE_IPADDR) may be a login node."""
    task = environment.get("SLURM_PROCID"), environment.get("SLURM_STEP_NUM_TASKS")
    is_task = task == (str(rank), str(ranks))
    step = environment.get("SLURM_STEP_NODELIST", "") if is_task else ""
    node = first_node(step or environment.get("SLURM_JOB_NODELIST", ""))
    here = environment.get("SLURMD_NODENAME", node)
    if node and rank == 0 and here != node:
        raise Unknown(
            f"Slurm started rank 0 on {here} and not on {node}, the first node: set MASTER_ADDR to "
            f"an address of {here}"
        )
    return node


def _place(
    rank: int, ranks: int, rendezvous: Optional[str], environment: Mapping[str, str]
) -> Place:
    if rendezvous:
        host, _, port = rendezvous.partition(":") if rendezvous.startswith("unix:") else (
            rendezvous.rpartition(":")
        )  # fmt: skip
        return Place(rank, ranks, host, port)
    # torchrun's own store listens on MASTER_PORT.
    before = _number(environment.get("MASTER_PORT"), 1, 65534)
    port = str(DEFAULT_PORT if before is None else before + 1)
    host = environment.get("MASTER_ADDR", "")
    if host:
        return Place(rank, ranks, host, port)
    # On the node itself, its name may mean a loopback address.
    return Place(rank, ranks, _node_of_rank_0(rank, ranks, environment), port, everywhere=True)


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
    place = _place(rank, ranks, rendezvous, environment)
    if not place.host:
        raise Unknown(
            "the rendezvous is unknown: give --rendezvous HOST:PORT, or set MASTER_ADDR to an "
            "address of rank 0's host"
        )
    if place.host != "unix" and _number(place.port, 1, 65535) is None:
        raise Unknown(f"--rendezvous {place.host}:{place.port}: a port is a number from 1 to 65535")
    return place
