# SPDX-License-Identifier: Apache-2.0
"""The start and the end of a job, and a rank's place in it."""

from __future__ import annotations

import os
from typing import Optional

import torch
import torch.distributed as dist

from harp.light.reducer import Reducer
from harp.light.settings import read

# torchrun's variable, and that of Open MPI's mpirun.
LAUNCHERS = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_reducers: dict[bool, Reducer] = {}  # of all-reduces that are no gradients, by fp16
_started_here = False


def init(backend: Optional[str] = None) -> None:
    """Joins the job that torchrun or mpirun has started; without a launcher it has one rank.

    backend: by default nccl where there is a GPU, and harp elsewhere. A process group that the
    program has made before is used as it is. Raises SettingError for a bad variable, and
    RuntimeError if the ranks do not meet.
    """
    global _started_here
    settings = read()
    if not dist.is_initialized():
        for ours, theirs in LAUNCHERS.items():
            if ours not in os.environ and theirs in os.environ:
                os.environ[ours] = os.environ[theirs]
        _initialize(backend or ("nccl" if torch.cuda.is_available() else "harp"))
        _started_here = True
    if not _reducers:
        _reducers.update({fp16: Reducer(settings, fp16=fp16) for fp16 in (False, True)})


def _initialize(backend: str) -> None:
    if "harp" in backend:
        import harp.torch  # noqa: F401
    if "RANK" not in os.environ:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise RuntimeError(
                f"{name} is not set; start the job by torchrun, or pass the address and a free "
                "port of rank 0's host: mpirun -x MASTER_ADDR=… -x MASTER_PORT=…"
            )
    dist.init_process_group(backend)


def reducer(fp16: bool) -> Reducer:
    """The reducer of single tensors. Raises RuntimeError before init."""
    if not _reducers:
        raise RuntimeError("harp.light.torch is not initialized; call hvd.init() first")
    return _reducers[fp16]


def shutdown() -> None:
    """Leaves the job. It destroys the process group if init made it."""
    global _started_here
    _reducers.clear()
    if _started_here:
        dist.destroy_process_group()
        _started_here = False


def is_initialized() -> bool:
    return bool(_reducers)


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def local_rank() -> int:
    """The number of the process among those of its host; 0 without a launcher."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_size() -> int:
    """The number of processes on the host; 1 without a launcher."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
