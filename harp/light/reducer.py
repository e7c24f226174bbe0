# SPDX-License-Identifier: Apache-2.0
"""Averages of gradients: plain, in two dimensions, in 16 bits, or of the largest values only."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist

from harp.light import half, residuals, topk
from harp.light.groups import Groups
from harp.light.lane import Lane
from harp.light.residuals import Parts
from harp.light.settings import Settings, read

KEY = "light"  # in the state_dict of an optimizer


class Reducer:
    """Reduces buffers of gradients over a process group.

    All ranks of the group create it at the same time, and submit equal buffers in the same order.

    settings: by default the variables LIGHT_... of the environment
    process_group: by default all ranks of the job
    optimizer: its state_dict then also has the state of top-k
    fp16: sends gradients that top-k does not reduce as 16-bit floats
    warmup_steps: steps until the ratio of top-k is reached
    error_feedback: False drops what top-k does not send; only measurements need it

    Raises SettingError on all ranks for a bad variable.
    """

    def __init__(
        self,
        settings: Optional[Settings] = None,
        process_group: Optional[dist.ProcessGroup] = None,
        optimizer: Optional[torch.optim.Optimizer] = None,
        fp16: bool = False,
        warmup_steps: int = 0,
        error_feedback: bool = True,
    ) -> None:
        self.settings = settings or read()
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps is {warmup_steps}; it must be at least 0")
        self.groups = Groups(self.settings, process_group)
        self.step = 0
        self._rank = dist.get_rank()  # the job may be over when the state is saved
        self.residuals: dict[torch.Tensor, torch.Tensor] = {}
        self._lane = Lane(self.settings.cycle_ms)
        self._fp16 = fp16
        self._warmup_steps = warmup_steps
        self._error_feedback = error_feedback
        if optimizer is not None:
            self._keep_with(optimizer)

    def submit(self, flat: torch.Tensor, parts: Parts, average: bool = True) -> Any:
        """A future of `flat`, which is then the average of all ranks' buffers, or their sum.

        `parts` are views of `flat` with the parameters that they belong to; together they cover it.
        They may come in other buffers at the next step.
        """
        ratio = topk.ratio_at(self.settings.topk_ratio, self.step, self._warmup_steps)
        return self._lane.submit(lambda: self._reduce(flat, parts, ratio, average), flat)

    def submit_plain(self, flat: torch.Tensor, average: bool) -> Any:
        """A future of a buffer that is no gradient: top-k never applies."""
        return self._lane.submit(lambda: self._reduce_all(flat, average), flat)

    def _reduce(
        self, flat: torch.Tensor, parts: Parts, ratio: float, average: bool
    ) -> torch.Tensor:
        settings = self.settings
        size = flat.numel() * flat.element_size()
        if settings.topk and size >= settings.topk_least and flat.is_floating_point():
            return self._reduce_largest(flat, parts, ratio, average)
        for parameter, view in parts:
            kept = self.residuals.pop(parameter, None)
            if kept is not None:
                view.add_(kept.view_as(view))
        return self._reduce_all(flat, average)

    def _reduce_all(self, flat: torch.Tensor, average: bool) -> torch.Tensor:
        size = flat.numel() * flat.element_size()
        two_d = self.settings.two_d and size <= self.settings.two_d_most
        divisor = self.groups.size if average else 1
        if self._fp16 and flat.dtype in (torch.float32, torch.float64):
            return half.all_reduce(flat, self.groups, two_d, divisor)
        if average:
            # Dividing first keeps the sum inside the range of 16-bit floats.
            flat.div_(divisor)
        self.groups.all_reduce(flat, two_d)
        return flat

    def _reduce_largest(
        self, flat: torch.Tensor, parts: Parts, ratio: float, average: bool
    ) -> torch.Tensor:
        rest = (residuals.buffer_of(self.residuals, flat, parts) if self._error_feedback
                else torch.zeros_like(flat))  # fmt: skip
        sent = topk.take(flat, rest, ratio, self.settings.topk_fp16)
        return topk.add_all(flat, sent, self.groups.whole, self.groups.size if average else 1)

    def _keep_with(self, optimizer: torch.optim.Optimizer) -> None:
        """Saves and restores residuals and step with the optimizer's state_dict.

        Residuals differ between ranks. A rank that loads the file of another rank keeps the
        residuals that it has.
        """

        def parameters() -> list[torch.Tensor]:
            return [one for group in optimizer.param_groups for one in group["params"]]

        def save(_: Any, state: dict[str, Any]) -> None:
            kept = {number: self.residuals[one].clone() for number, one in enumerate(parameters())
                    if one in self.residuals}  # fmt: skip
            state[KEY] = {"step": self.step, "rank": self._rank, "residuals": kept}

        def load(_: Any, state: dict[str, Any]) -> dict[str, Any]:
            saved = state.get(KEY)
            if saved is not None:
                self.step = saved["step"]
                if saved["rank"] == self._rank:
                    ours = parameters()
                    self.residuals = {ours[number]: kept.to(ours[number]).clone()
                                      for number, kept in saved["residuals"].items()}  # fmt: skip
            return {key: value for key, value in state.items() if key != KEY}

        optimizer.register_state_dict_post_hook(save)
        optimizer.register_load_state_dict_pre_hook(load)
