# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training over harp and over Gloo: the same seeds give the same parameters.

Exit: 0, or 1 if they differ.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import harp.torch  # noqa: F401

STEPS, BATCH, INPUTS, CLASSES = 4, 16, 64, 10


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(INPUTS, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, CLASSES)
    )


def train(net: nn.Module, rank: int) -> float:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(100 + rank)
    loss = torch.zeros(())
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, INPUTS, generator=data)
        labels = torch.randint(0, CLASSES, (BATCH,), generator=data)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def by_ddp(group: dist.ProcessGroup, rank: int) -> list[torch.Tensor]:
    # Small buckets: several reductions are under way at once.
    net = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.02)
    loss = train(net, rank)
    return [torch.tensor(loss), *(one.detach() for one in net.parameters())]


def by_fsdp(backend: str, rank: int) -> list[torch.Tensor]:
    mesh = dist.device_mesh.DeviceMesh.from_group(dist.new_group(backend=backend), "cpu")
    net = model()
    fully_shard(net, mesh=mesh)
    loss = train(net, rank)
    return [torch.tensor(loss), *(one.full_tensor().detach() for one in net.parameters())]


def differ(mine: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return not all(torch.allclose(a, b, atol=1e-5) for a, b in zip(mine, right))


def main() -> int:
    dist.init_process_group("harp")
    rank, wrong = dist.get_rank(), []
    gloo = dist.new_group(backend="gloo")
    harp_group = dist.distributed_c10d._get_default_group()
    if differ(by_ddp(harp_group, rank), by_ddp(gloo, rank)):
        wrong.append("DDP")
    if differ(by_fsdp("harp", rank), by_fsdp("gloo", rank)):
        wrong.append("FSDP")
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank}: different: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
