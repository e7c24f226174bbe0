# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface of PyTorch over torch.distributed.

    import harp.light.torch as hvd

The functions behave as those of horovod.torch. They carry no gradients through communication.
"""

from __future__ import annotations

from harp.light.torch.compression import Compression
from harp.light.torch.job import (
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from harp.light.torch.operations import (
    Average,
    Sum,
    allgather,
    allreduce,
    allreduce_,
    broadcast,
    broadcast_,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from harp.light.torch.optimizer import DistributedOptimizer

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Sum",
    "allgather",
    "allreduce",
    "allreduce_",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
