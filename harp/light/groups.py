# SPDX-License-Identifier: Apache-2.0
"""Process groups of LightCC, and the two-dimensional all-reduce over them."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, Optional

import torch
import torch.distributed as dist

from harp.light import names
from harp.light.settings import SettingError, Settings, variables


def timeout_of(group: Any) -> Optional[timedelta]:
    """The timeout of a process group. None: its backends show none."""
    own: Optional[timedelta] = getattr(group, "timeout", None)  # of harp's group
    if own is not None:
        return own
    for device in group._device_types:
        try:
            options = getattr(group._get_backend(device), "options", None)
        except RuntimeError:  # torch raises it for a backend in C++ that has no options
            continue
        own = getattr(options, "_timeout", None)
        if own is not None:
            return own
    return None


class Groups:
    """The groups of one reducer, apart from those of the training.

    All ranks of `parent` (None: all ranks of the job) must create it at the same time. Collectives
    of one group need the same order on all ranks. The reducer has a thread of its own, so it needs
    groups of its own. Raises SettingError if ranks differ in a variable, or cannot form a grid.
    """

    def __init__(self, settings: Settings, parent: Optional[dist.ProcessGroup] = None) -> None:
        ranks = dist.get_process_group_ranks(parent or dist.group.WORLD)
        self._options: dict[str, Any] = {"backend": dist.get_backend(parent)}
        timeout = timeout_of(parent or dist.group.WORLD)
        if timeout is not None:  # some releases of torch take no None
            self._options["timeout"] = timeout
        self.size = len(ranks)
        self.whole = self._new(ranks)
        self._agree(settings)
        self.intra: Optional[dist.ProcessGroup] = None
        self.inter: Optional[dist.ProcessGroup] = None
        self._width = settings.intra_size
        if settings.two_d and 1 < self._width < self.size:
            if self.size % self._width:
                raise SettingError(
                    f"LIGHT_INTRA_SIZE={self._width} does not divide the {self.size} ranks of the "
                    "job; set it to the ranks of a host, or set LIGHT_2D_ALLREDUCE=0"
                )
            row, column = divmod(dist.get_rank(self.whole), self._width)
            inside = ranks[row * self._width : (row + 1) * self._width]
            self.intra = self._new(inside)
            self.inter = self._new(ranks[column :: self._width])

    def _new(self, ranks: list[int]) -> dist.ProcessGroup:
        """A rank creates only the groups that it is in. They have the parent's timeout: a lost rank
        would else hold up a job for half an hour."""
        return dist.new_group(ranks, use_local_synchronization=True, **self._options)

    def _agree(self, settings: Settings) -> None:
        """Ranks that choose different algorithms would wait for each other until the timeout."""
        found: list[Optional[dict[str, object]]] = [None] * self.size
        dist.all_gather_object(found, dataclasses.asdict(settings), group=self.whole)
        for name, field in variables().items():
            values = [one[field] for one in found if one]
            for rank, value in enumerate(values):
                if value != values[0]:
                    raise SettingError(
                        f"{name} differs: rank 0 has {values[0]}, rank {rank} has {value}; "
                        "give all ranks the same value"
                    )

    def is_grid(self, two_d: bool) -> bool:
        """Whether a sum that asks for two dimensions has them."""
        return two_d and self.intra is not None

    def all_reduce(
        self, flat: torch.Tensor, two_d: bool, async_op: bool = False
    ) -> Optional[dist.Work]:
        """Sums a buffer of one dimension over all ranks, in place.

        It blocks, except with async_op: the sum is then under way, and a work is returned to wait
        for. None: the sum is done.
        """
        if self.size == 1:
            return None
        if self.is_grid(two_d):
            self._all_reduce_2d(flat)
            return None
        return dist.all_reduce(flat, group=self.whole, async_op=async_op)

    def _all_reduce_2d(self, flat: torch.Tensor) -> None:
        """Reduce-scatter inside a group, all-reduce across the groups, all-gather inside."""
        missing = -flat.numel() % self._width
        padded = torch.cat([flat, flat.new_zeros(missing)]) if missing else flat
        share = flat.new_empty(padded.numel() // self._width)
        names.reduce_scatter_single(share, padded, group=self.intra)
        dist.all_reduce(share, group=self.inter)
        names.all_gather_single(padded, share, group=self.intra)
        if missing:
            flat.copy_(padded[: flat.numel()])
