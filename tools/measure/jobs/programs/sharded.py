# SPDX-License-Identifier: Apache-2.0
"""One worker of tools/jobs fsdp. Usage: sharded.py FOLDER STEPS WAIT

Trains a transformer whose parameters and optimizer state FSDP splits over the ranks. A checkpoint
follows each step, and training begins at the last whole one. Each rank prints a record for each
step: rank, pid, step, attempt, and the mean loss of the ranks. The last rank waits after step WAIT
of the first attempt to be killed. 0: no rank waits.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import harp.torch  # noqa: F401
from tools.measure.jobs.programs.models import transformer

RATE = 0.01


def whole_checkpoints(folder: Path) -> list[int]:
    """The steps that have one. The file .metadata is written at last."""
    return sorted(int(one.parent.name) for one in folder.glob("*/.metadata"))


def main() -> None:
    folder, steps, wait = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("harp")
    rank = dist.get_rank()
    torch.manual_seed(1)
    task = transformer()
    mesh = dist.device_mesh.DeviceMesh.from_group(dist.group.WORLD, "cpu")
    for block in task.model.blocks.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(task.model, mesh=mesh)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=RATE)
    begin = max(whole_checkpoints(folder), default=0)
    if begin:
        model_state, optimizer_state = get_state_dict(task.model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        checkpoint.load(state, checkpoint_id=folder / str(begin))
        set_state_dict(task.model, optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])  # fmt: skip
    for step in range(begin + 1, steps + 1):
        batch = task.batch(torch.Generator().manual_seed(1000 * step + rank))
        optimizer.zero_grad()
        loss = task.loss(task.model, batch)
        loss.backward()
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        model_state, optimizer_state = get_state_dict(task.model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        checkpoint.save(state, checkpoint_id=folder / str(step))
        print(json.dumps({"rank": rank, "pid": os.getpid(), "step": step, "attempt": attempt,
                          "loss": float(mean)}), flush=True)  # fmt: skip
        if step == wait and attempt == 0 and rank == dist.get_world_size() - 1:
            signal.pause()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
