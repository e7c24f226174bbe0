# SPDX-License-Identifier: Apache-2.0
"""One rank of tools/jobs ddp. Usage: ddp.py STEPS SEED inject-wrong|sound MODEL...

Trains two copies of each model, one over Gloo and one over harp, with the same batches. Each step
of one is followed by the same step of the other, and they take turns in going first. Rank 0 prints
a record for each model: losses (the mean of the ranks) and seconds of each step, by backend.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import harp.torch  # noqa: F401
from tools.measure.jobs.programs.models import MODELS, Batch, Task

RATE = 0.1


def step(
    task: Task, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, wrong: bool
) -> torch.Tensor:
    """Takes a step and returns the loss before it. wrong: with gradients of twice the size."""
    optimizer.zero_grad()
    loss = task.loss(model, batch)
    loss.backward()
    if wrong:
        for parameter in model.parameters():
            parameter.grad.mul_(2)
    optimizer.step()
    return loss.detach()


def train(
    name: str, groups: dict[str, dist.ProcessGroup], steps: int, seed: int, wrong: bool
) -> dict[str, Any]:
    """Losses and seconds of each step, by backend."""
    torch.manual_seed(seed)
    task = MODELS[name]()
    models = {
        backend: DistributedDataParallel(copy.deepcopy(task.model), process_group=group)
        for backend, group in groups.items()
    }
    optimizers = {
        backend: torch.optim.SGD(model.parameters(), lr=RATE) for backend, model in models.items()
    }
    chosen = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    losses: dict[str, list[torch.Tensor]] = {backend: [] for backend in groups}
    seconds: dict[str, list[float]] = {backend: [] for backend in groups}
    for number in range(steps):
        batch = task.batch(chosen)
        for backend in sorted(groups, reverse=number % 2 == 1):
            spoiled = wrong and backend == "harp" and number == steps // 2
            dist.barrier(group=groups[backend])
            began = time.perf_counter()
            loss = step(task, models[backend], optimizers[backend], batch, spoiled)
            seconds[backend].append(time.perf_counter() - began)
            losses[backend].append(loss)
    means = {}
    for backend, found in losses.items():
        mean = torch.stack(found).double() / dist.get_world_size()
        dist.all_reduce(mean)
        means[backend] = mean.tolist()
    count = sum(one.numel() for one in task.model.parameters())
    return {"model": name, "parameters": count, "losses": means, "seconds": seconds}


def main() -> None:
    steps, seed, sound, *names = sys.argv[1:]
    dist.init_process_group("gloo")
    groups = {name: dist.new_group(backend=name) for name in ("gloo", "harp")}
    for name in names:
        record = train(name, groups, int(steps), int(seed), sound == "inject-wrong")
        if dist.get_rank() == 0:
            print(json.dumps(record), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
