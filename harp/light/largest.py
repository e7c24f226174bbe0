# SPDX-License-Identifier: Apache-2.0
"""The choice of the largest values of a buffer.

torch.topk takes long for many values on a CPU. A sample gives a bound that somewhat more values
than are wanted reach, and only these candidates are compared. The result is the same.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from harp.light import native

SAMPLES = 16384  # values that tell about how large the chosen ones are
MARGIN = 1.5  # candidates for each chosen value
ROOM = 2  # places for candidates for each chosen value: a sample is not exact

Chosen = tuple[torch.Tensor, torch.Tensor]  # indices, values


def add_and_choose(rest: torch.Tensor, flat: torch.Tensor, count: int) -> Chosen:
    """Adds `flat` to `rest`, and chooses the `count` largest of the sums; NaN counts as largest.

    Both have one dimension, and `flat` has only zeros afterwards.
    """
    chosen = None
    total = flat.numel()
    library = native.library_for(rest, flat)
    if library and _is_sampled(total, count) and total <= torch.iinfo(torch.int32).max:
        chosen = _in_one_pass(library, rest, flat, count)
    else:
        rest.add_(flat)
    if chosen is None:
        # `flat` is free now, and its memory is in place.
        indices = largest(torch.abs(rest, out=flat), count)
        chosen = indices, rest[indices]
        flat.zero_()
    return chosen


def largest(sizes: torch.Tensor, count: int) -> torch.Tensor:
    """The indices of the `count` largest of `sizes`, none negative. NaN counts as largest."""
    if not sizes.is_cuda and _is_sampled(sizes.numel(), count):
        bound = _bound(sizes[_samples(sizes.numel())], sizes.numel(), count)
        candidates = (sizes < bound).logical_not_().nonzero().flatten()
        if candidates.numel() >= count:
            return candidates[_topk(sizes[candidates], count)]
    return _topk(sizes, count)


def _topk(sizes: torch.Tensor, count: int) -> torch.Tensor:
    return torch.topk(sizes, count, sorted=False).indices


def _is_sampled(total: int, count: int) -> bool:
    return total > 4 * SAMPLES and MARGIN * count / total < 0.5


def _samples(total: int) -> slice:
    return slice(None, None, total // SAMPLES)


def _bound(sample: torch.Tensor, total: int, count: int) -> torch.Tensor:
    share = MARGIN * count / total
    return torch.topk(sample, math.ceil(share * sample.numel())).values[-1]


def _in_one_pass(
    library: Any, rest: torch.Tensor, flat: torch.Tensor, count: int
) -> Optional[Chosen]:
    """Adds, sets `flat` to zero, and chooses. None if the sample has misled: only the choice is
    then left to do."""
    total, room = flat.numel(), ROOM * count
    sample = (rest[_samples(total)] + flat[_samples(total)]).abs_()
    bound = float(_bound(sample, total, count))
    indices = torch.empty(room, dtype=torch.int32)
    values = torch.empty(room)
    found = library.harp_light_candidates(
        rest.data_ptr(), flat.data_ptr(), total, bound, indices.data_ptr(), values.data_ptr(), room
    )
    if not count <= found <= room:
        return None
    chosen = _topk(values[:found].abs(), count)
    return indices[:found][chosen], values[:found][chosen]
