# SPDX-License-Identifier: Apache-2.0
"""Single operations of Horovod's interface."""

from __future__ import annotations

from typing import Any

import pytest
from light_ranks import run, run_each

pytestmark = pytest.mark.torch


def operations() -> list[Any]:
    import torch

    import harp.light.torch as hvd

    hvd.init()
    rank = hvd.rank()
    mine = torch.full((2, 3), float(rank + 1))
    found: list[Any] = [(rank, hvd.size(), hvd.local_rank(), hvd.is_initialized())]
    found.append(hvd.allreduce(mine).tolist())
    found.append(hvd.allreduce(mine, compression=hvd.Compression.fp16, op=hvd.Sum).tolist())
    found.append(hvd.allreduce(torch.tensor([rank, 1]), average=False).tolist())
    found.append(mine.tolist())
    # Columns are no contiguous memory.
    hvd.allreduce_(mine.t()[:2])
    found.append(mine.tolist())
    found.append(hvd.allgather(torch.full((rank + 1, 2), rank)).tolist())
    found.append(hvd.broadcast(torch.tensor([rank]), root_rank=1).tolist())
    found.append(hvd.broadcast_object({"rank": rank}, root_rank=1))
    for wrong in (
        lambda: hvd.allreduce(torch.tensor([1])),
        lambda: hvd.allreduce(mine, op="max"),
        lambda: hvd.allreduce(mine, average=True, op=hvd.Sum),
    ):
        try:
            wrong()
        except (TypeError, ValueError) as error:
            found.append(str(error))
    hvd.shutdown()
    try:
        hvd.allreduce(mine)
    except RuntimeError as error:
        found.append(str(error))
    return found


def test_operations() -> None:
    for rank, found in enumerate(run(2, operations)):
        assert found == [
            (rank, 2, rank, True),
            [[1.5] * 3] * 2,
            [[3.0] * 3] * 2,
            [1, 2],
            [[rank + 1.0] * 3] * 2,
            [[1.5, 1.5, rank + 1.0]] * 2,
            [[0, 0], [1, 1], [1, 1]],
            [1],
            {"rank": 1},
            "the average of torch.int64 is no torch.int64; use op=hvd.Sum",
            "op is max; harp.light knows Average and Sum",
            "average and op say the same; give op alone",
            "harp.light.torch is not initialized; call hvd.init() first",
        ]


def started(backend: str) -> Any:
    import torch.distributed as dist

    import harp.light.torch as hvd

    dist.destroy_process_group()
    try:
        hvd.init(backend)
        found = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()
        hvd.shutdown()
    except RuntimeError as error:
        found = str(error)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return found


def test_init_without_a_launcher_makes_one_rank() -> None:
    assert run_each([{}], started, "gloo") == [(0, 1, 0, 1)]


def test_init_under_mpirun_names_what_is_missing() -> None:
    variables = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    (text,) = run_each([variables], started, "gloo")
    assert text.startswith("MASTER_ADDR is not set; start the job by torchrun, or pass the address")
