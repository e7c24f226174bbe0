# SPDX-License-Identifier: Apache-2.0
"""A communication hook of DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from harp.light.reducer import Reducer as State

__all__ = ["State", "hook"]


def hook(state: State, bucket: dist.GradBucket) -> Any:
    """The hook for `model.register_comm_hook(State(...), hook)`. DDP calls it for each bucket.

    The future has the bucket's average. It raises what the collectives raise.
    """
    parts = list(zip(bucket.parameters(), bucket.gradients()))
    future = state.submit(bucket.buffer(), parts)
    if bucket.is_last():
        state.step += 1
    return future
