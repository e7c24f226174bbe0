# SPDX-License-Identifier: Apache-2.0
"""One rank of tools/jobs shared-memory. Usage: shared_memory.py ROUNDS SIZE..."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Callable

import torch
import torch.distributed as dist

import harp.torch  # noqa: F401

ROUND_S = 0.05  # length of a round, by the first estimate
MOST = 100  # operations of a round: the ranks yield to each other in short ones

Run = Callable[[dist.ProcessGroup], object]


def operations(size: int) -> dict[str, Run]:
    """Each moves a tensor of `size` bytes, or one of which each rank has a part."""
    ranks = dist.get_world_size()
    whole = torch.zeros(max(1, size // 4 // ranks) * ranks)
    other = torch.zeros_like(whole)
    part = torch.zeros(whole.numel() // ranks)
    parts = list(other.split(part.numel())) if dist.get_rank() == 0 else None
    return {
        "all_reduce": lambda group: dist.all_reduce(whole, group=group),
        "reduce": lambda group: dist.reduce(whole, 0, group=group),
        "broadcast": lambda group: dist.broadcast(whole, 0, group=group),
        "all_gather": lambda group: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_to_all": lambda group: dist.all_to_all_single(whole, other, group=group),
        "gather": lambda group: dist.gather(part, parts, 0, group=group),
        "scatter": lambda group: dist.scatter(part, parts, 0, group=group),
    }


def measure(run: Run, group: dist.ProcessGroup, count: int) -> tuple[float, float]:
    """Seconds of one operation, and CPU seconds of this rank: the means of `count`. All ranks have
    ended them."""
    dist.barrier(group=group)
    began, used = time.perf_counter(), time.process_time()
    for _ in range(count):
        run(group)
    dist.barrier(group=group)
    return (time.perf_counter() - began) / count, (time.process_time() - used) / count


def compare(run: Run, groups: dict[str, dist.ProcessGroup], rounds: int) -> dict[str, object]:
    """Seconds, and CPU seconds of all ranks, of each group in turns."""
    estimate = torch.tensor([max(measure(run, group, 2)[0] for group in groups.values())])
    dist.broadcast(estimate, 0)
    count = max(2, min(MOST, int(ROUND_S / float(estimate))))
    seconds: dict[str, list[float]] = {name: [] for name in groups}
    cpu: dict[str, list[float]] = {name: [] for name in groups}
    for number in range(rounds):
        for name in sorted(groups, reverse=number % 2 == 1):
            took, used = measure(run, groups[name], count)
            total = torch.tensor([used])
            dist.all_reduce(total)
            seconds[name].append(took)
            cpu[name].append(float(total))
    return {"count": count, "seconds": seconds, "cpu_seconds": cpu}


def main() -> None:
    rounds, *sizes = map(int, sys.argv[1:])
    dist.init_process_group("gloo")
    groups = {}
    for name, wanted in (("links", "0"), ("windows", "1")):
        os.environ["HARP_SHARED_MEMORY"] = wanted
        groups[name] = dist.new_group(backend="harp")
    barrier = {"barrier": lambda group: dist.barrier(group=group)}
    for size in (0, *sizes):
        for name, run in (operations(size) if size else barrier).items():
            told = compare(run, groups, rounds)
            if dist.get_rank() == 0:
                print(json.dumps({"operation": name, "size": size, **told}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
