# SPDX-License-Identifier: Apache-2.0
"""A communication hook of DistributedDataParallel.

DDP compares the annotations of a hook with classes, so they are no texts here.
"""

import torch
import torch.distributed as dist

from harp.light.reducer import Reducer as State

__all__ = ["State", "hook"]


def hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook for `model.register_comm_hook(State(...), hook)`. DDP calls it for each bucket.

    The future has the bucket's average. It raises what the collectives raise.
    """
    parts = list(zip(bucket.parameters(), bucket.gradients()))
    future = state.submit(bucket.buffer(), parts)
    if bucket.is_last():
        state.step += 1
    return future
