# SPDX-License-Identifier: Apache-2.0
"""The C library of harp/collectives, for buffers of gradients on CPUs.

Its loop saves passes over memory. torch does the same work where it cannot.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Optional

import torch


@lru_cache(maxsize=None)
def library() -> Optional[Any]:
    """The C library of harp.torch; None if this host has none."""
    from harp.torch import library  # not before: a job on GPUs needs no backend for CPUs

    try:
        return library.library()
    except OSError:
        return None


def library_for(*buffers: torch.Tensor) -> Optional[Any]:
    """The library if it can read these buffers: contiguous float32 in a host's memory."""
    fit = all(
        one.device.type == "cpu" and one.dtype == torch.float32 and one.is_contiguous()
        for one in buffers
    )
    return library() if fit else None
