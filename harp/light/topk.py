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

WARMUP_START = 0.25  # the share that Deep Gradient Compression sends in its first epoch
SAMPLES = 16384  # values that tell about how large the chosen ones are
MARGIN = 1.5  # candidates for each chosen value


def ratio_at(ratio: float, step: int, warmup_steps: int) -> float:
    """The share of values to send at a step. It falls geometrically from 1/4 to `ratio`."""
    if step >= warmup_steps or ratio >= WARMUP_START:
        return ratio
    done = step / warmup_steps
    return float(WARMUP_START ** (1 - done) * ratio**done)


@dataclass
class Sparse:
    """Chosen values of a buffer of `size` elements."""

    indices: torch.Tensor
    values: torch.Tensor
    size: int


def largest(sizes: torch.Tensor, count: int) -> torch.Tensor:
    """The indices of the `count` largest of `sizes`, which are not negative. NaN counts as largest.

    torch.topk takes long for many values on a CPU. A sample gives a bound that somewhat more values
    than `count` reach, and only these are compared. The result is the same.
    """
    total = sizes.numel()
    share = MARGIN * count / total
    if not sizes.is_cuda and total > 4 * SAMPLES and share < 0.5:
        sample = sizes[:: total // SAMPLES]
        bound = torch.topk(sample, math.ceil(share * sample.numel())).values[-1]
        candidates = (~(sizes < bound)).nonzero().flatten()
        if candidates.numel() >= count:
            return candidates[torch.topk(sizes[candidates], count, sorted=False).indices]
    return torch.topk(sizes, count, sorted=False).indices


def take(flat: torch.Tensor, ratio: float, fp16: bool) -> Sparse:
    """Takes the largest values out of `flat`, and leaves there what is not sent.

    The rounding errors of 16-bit values stay in `flat`, too. Infinities and NaNs are sent first,
    and none stays behind: they would spoil every later step.
    """
    count = max(1, math.ceil(ratio * flat.numel()))
    indices = largest(flat.abs(), count)
    values = flat[indices]
    if fp16:
        most = torch.finfo(torch.float16).max
        finite = values.clamp(-most, most)
        values = torch.where(values.isfinite(), finite, values).to(torch.float16)
    flat[indices] -= values.to(flat.dtype)
    flat.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    small = flat.numel() <= torch.iinfo(torch.int32).max
    return Sparse(indices.to(torch.int32 if small else torch.int64), values, flat.numel())


def sum_over(sparse: Sparse, group: dist.ProcessGroup, dtype: torch.dtype) -> torch.Tensor:
    """The dense sum of all ranks' values. Each rank brings as many values; it blocks."""
    ranks = dist.get_world_size(group)
    # One message: indices, then values.
    mine = torch.cat([sparse.indices.view(torch.uint8), sparse.values.view(torch.uint8)])
    all_ranks = mine.new_empty(ranks * mine.numel())
    names.all_gather_single(all_ranks, mine, group=group)
    total = torch.zeros(sparse.size, dtype=dtype, device=mine.device)
    middle = sparse.indices.numel() * sparse.indices.element_size()
    for row in all_ranks.view(ranks, -1):
        indices = row[:middle].clone().view(sparse.indices.dtype)
        values = row[middle:].clone().view(sparse.values.dtype)
        total.index_add_(0, indices, values.to(dtype))
    return total
