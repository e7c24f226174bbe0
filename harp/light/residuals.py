# SPDX-License-Identifier: Apache-2.0
"""Residuals of top-k. Each belongs to a parameter, and those of a bucket lie in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch

Parts = Sequence[tuple[torch.Tensor, torch.Tensor]]  # a parameter, and its place in a buffer


def buffer_of(
    residuals: dict[torch.Tensor, torch.Tensor], flat: torch.Tensor, parts: Parts
) -> torch.Tensor:
    """A buffer like `flat` with the residuals of its parts, and with zeros where there are none.

    `residuals` has views of the buffer afterwards. It is the buffer of the last step if the bucket
    has the same parts: a new one costs a copy, and a page fault for each page of memory.
    Raises RuntimeError for a residual that does not fit its parameter.
    """
    found = _shared_buffer(residuals, flat, parts)
    if found is not None:
        return found
    made = torch.zeros_like(flat)
    for parameter, view in parts:
        place = made.as_strided(view.shape, view.stride(), _offset(view, flat))
        old = residuals.get(parameter)
        if old is not None:
            place.copy_(old.view_as(view))
        residuals[parameter] = place
    return made


def _offset(view: torch.Tensor, flat: torch.Tensor) -> int:
    return int(view.storage_offset() - flat.storage_offset())


def _shared_buffer(
    residuals: dict[torch.Tensor, torch.Tensor], flat: torch.Tensor, parts: Parts
) -> Optional[torch.Tensor]:
    """The buffer if all parts have residuals, and these lie in one as the parts do in `flat`."""
    kept = [residuals.get(parameter) for parameter, _ in parts]
    first = kept[0] if kept else None
    if first is None:
        return None
    storage = first.untyped_storage()
    if storage.nbytes() != flat.numel() * flat.element_size():
        return None
    for (_, view), one in zip(parts, kept):
        if (
            one is None
            or one.untyped_storage().data_ptr() != storage.data_ptr()
            or (one.dtype, one.device) != (flat.dtype, flat.device)
            or (one.shape, one.stride()) != (view.shape, view.stride())
            or one.storage_offset() != _offset(view, flat)
        ):
            return None
    return first.as_strided(flat.shape, flat.stride(), 0)
