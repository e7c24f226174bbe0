# SPDX-License-Identifier: Apache-2.0
"""One rank of tools/jobs all-reduce. Usage: all_reduce.py ROUNDS SIZE..."""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist

import harp.torch  # noqa: F401

ROUND_S = 0.05  # length of a round, by the first estimate


def timed(tensor: torch.Tensor, group: dist.ProcessGroup, count: int) -> float:
    """Seconds of one operation, the mean of `count`."""
    dist.barrier(group=group)
    began = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - began) / count


def main() -> None:
    rounds, *sizes = map(int, sys.argv[1:])
    dist.init_process_group("gloo")
    groups = {name: dist.new_group(backend=name) for name in ("gloo", "harp")}
    for size in sizes:
        tensor = torch.zeros(max(1, size // 4))  # sums of zeros stay zero
        estimate = torch.tensor([timed(tensor, group, 2) for group in groups.values()]).max()
        dist.broadcast(estimate, 0)
        count = max(2, min(500, int(ROUND_S / float(estimate))))
        times: dict[str, list[float]] = {name: [] for name in groups}
        for number in range(rounds):
            for name in sorted(groups, reverse=number % 2 == 1):
                times[name].append(timed(tensor, groups[name], count))
        if dist.get_rank() == 0:
            print(json.dumps({"size": size, "count": count, **times}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
