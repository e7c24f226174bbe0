# SPDX-License-Identifier: Apache-2.0
"""Futures whose end needs another future. Each rank prints a line of JSON with its results."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import harp.torch  # noqa: F401

STEPS = 6


def in_callback() -> float:
    """A callback posts an operation, and waits for its future."""

    def again(future: Any) -> Any:
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
    return float(future.then(again).wait()[0])


def behind_receive(rank: int) -> float:
    """A future is asked for before another one, and its operation ends after that one's."""
    tensor, summed = torch.zeros(1), torch.ones(1)
    if rank == 0:
        received = dist.irecv(tensor, 1).get_future()
        dist.all_reduce(summed, async_op=True).get_future().wait()
        dist.send(summed, 1)
        return float(received.wait()[0])
    dist.all_reduce(summed)
    dist.recv(tensor, 0)
    dist.send(tensor + 1, 0)
    return float(tensor) + 1


def by_power_sgd(rank: int) -> list[float]:
    """The parameters after some steps of DDP. One bucket: callbacks of several ones would call
    their collectives in no fixed order."""
    torch.manual_seed(1)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 30)))
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
    )
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        net(torch.randn(8, 40, generator=data)).square().mean().backward()
        optimizer.step()
    assert state.p_memory_dict  # it has compressed
    return torch.cat([one.detach().reshape(-1) for one in net.parameters()]).tolist()


def main() -> None:
    dist.init_process_group("harp")
    rank = dist.get_rank()
    told: dict[str, Any] = {
        "in callback": in_callback(),
        "behind receive": behind_receive(rank),
        "powerSGD": by_power_sgd(rank),
    }
    old, other = (dist.all_reduce(torch.ones(1), async_op=True) for _ in range(2))
    assert old is not None and other is not None
    other.get_future().wait()
    dist.barrier()
    dist.destroy_process_group()
    told["after the end"] = float(old.get_future().wait()[0])
    print(json.dumps(told), flush=True)


main()
