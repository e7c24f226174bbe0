# SPDX-License-Identifier: Apache-2.0
"""Top-k compression: only the largest values of a buffer are sent, each with its index.

Source: Y. Lin et al., Deep Gradient Compression, ICLR 2018 (arXiv 1712.01887), for the exchange and
the warm-up; S. P. Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019 (arXiv 1901.09847),
for what happens to the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist

from harp.light import names
from harp.light.largest import add_and_choose

WARMUP_START = 0.25  # the share that Deep Gradient Compression sends in its first epoch


def ratio_at(ratio: float, step: int, warmup_steps: int) -> float:
    """The share of values to send at a step. It falls geometrically from 1/4 to `ratio`."""
    if step >= warmup_steps or ratio >= WARMUP_START:
        return ratio
    done = step / warmup_steps
    return float(WARMUP_START ** (1 - done) * ratio**done)


@dataclass
class Sparse:
    """Chosen values of a buffer."""

    indices: torch.Tensor
    values: torch.Tensor


def take(flat: torch.Tensor, rest: torch.Tensor, ratio: float, fp16: bool) -> Sparse:
    """Adds `flat` to `rest`, and takes the largest of the sums out of `rest`.

    What is not sent stays in `rest`, also the rounding errors of 16-bit values. `flat` has only
    zeros afterwards. Infinities and NaNs are sent first, and none stays behind: they would spoil
    every later step.
    """
    count = max(1, math.ceil(ratio * flat.numel()))
    indices, values = add_and_choose(rest, flat, count)
    sent = values
    if fp16:
        most = torch.finfo(torch.float16).max
        finite = values.clamp(-most, most)
        sent = torch.where(values.isfinite(), finite, values).to(torch.float16)
    rest.index_add_(0, indices, sent.to(rest.dtype), alpha=-1)
    # Without one among the largest, there is none at all. A GPU is not waited for to know that.
    if rest.is_cuda or not values.isfinite().all():
        rest.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    small = flat.numel() <= torch.iinfo(torch.int32).max
    return Sparse(indices.to(torch.int32 if small else torch.int64), sent)


def add_all(
    flat: torch.Tensor, sparse: Sparse, group: dist.ProcessGroup, divisor: int = 1
) -> torch.Tensor:
    """Adds all ranks' values to `flat`, each divided by `divisor`, and returns it.

    Each rank brings as many values; it blocks.
    """
    ranks = dist.get_world_size(group)
    # One message: indices, then values.
    mine = torch.cat([sparse.indices.view(torch.uint8), sparse.values.view(torch.uint8)])
    all_ranks = mine.new_empty(ranks * mine.numel())
    names.all_gather_single(all_ranks, mine, group=group)
    middle = sparse.indices.numel() * sparse.indices.element_size()
    for row in all_ranks.view(ranks, -1):
        indices = row[:middle].clone().view(sparse.indices.dtype)
        values = row[middle:].clone().view(sparse.values.dtype)
        flat.index_add_(0, indices, values.to(flat.dtype) / divisor)
    return flat
