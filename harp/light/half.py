# SPDX-License-Identifier: Apache-2.0
"""An all-reduce in 16 bits."""

from __future__ import annotations

import torch

from harp.light.groups import Groups

# Elements that are converted at once. The conversions of other pieces run beside the sum of one.
# More pieces have more ends, at which the wire waits for the next sum.
PIECE = 1 << 21


def all_reduce(flat: torch.Tensor, groups: Groups, two_d: bool, divisor: int) -> torch.Tensor:
    """Sums a buffer over all ranks in 16-bit floats, in place. It blocks.

    Each rank first divides its values by `divisor`, which keeps an average inside the range.
    """
    # A GPU converts in no time, and 2D has several collectives for each sum.
    overlaps = flat.device.type == "cpu" and not groups.is_grid(two_d)
    pieces = flat.split(PIECE) if overlaps else (flat,)
    sums = []
    for piece in pieces:
        if divisor > 1:
            piece.div_(divisor)
        short = piece.to(torch.float16)
        sums.append((piece, short, groups.all_reduce(short, two_d, len(pieces) > 1)))
    for piece, short, work in sums:
        if work is not None:
            work.wait()
        piece.copy_(short)
    return flat
