# SPDX-License-Identifier: Apache-2.0
"""Backends beside harp in one process group, as in "cpu:harp,cuda:nccl".

torch asks a backend in Python to be the whole group, and makes no backend for the other devices of
the group. So the group makes them itself: an operation on tensors of another device goes to a group
of torch with that device's backend and the same ranks.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

# Methods of a process group whose first tensor tells the device.
OPERATIONS = (
    "allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "broadcast", "allgather", "all_gather_single", "all_gather_single_coalesced",
    "allgather_coalesced", "_allgather_base", "allgather_into_tensor_coalesced", "alltoall",
    "all_to_all_single", "alltoall_base", "gather", "scatter", "send", "recv", "recv_anysource",
)  # fmt: skip


class OtherDevices:
    """The backends of one harp group for devices other than the CPU.

    Thread: those that call the group's operations. torch allows one at a time.
    """

    def __init__(self) -> None:
        self._groups: dict[str, Any] = {}

    def group_for(self, group: Any, device: torch.device) -> Optional[Any]:
        """The group of torch that serves the device; None if `group` names no backend for it.

        The first call for a device makes that group, and all ranks must take part.
        """
        kind = device.type
        if kind == "cpu":
            return None
        if kind not in self._groups:
            backend = _backends(group).get(kind)
            self._groups[kind] = backend and dist.new_group(
                dist.get_process_group_ranks(group),
                timeout=group.timeout,
                backend=f"{kind}:{backend}",
                use_local_synchronization=True,
            )
        return self._groups[kind]


def _backends(group: Any) -> dict[str, str]:
    """The backend of each device, from the words that the user gave to torch."""
    config = dist.get_backend_config(group)
    return dict(pair.split(":", 1) for pair in config.split(",") if ":" in pair)


def _first_tensor(value: Any) -> Optional[torch.Tensor]:
    """The first tensor of nested lists."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None


def by_device(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which passes tensors of another device to that device's group."""

    @functools.wraps(method)
    def choose(self: Any, *arguments: Any, **named: Any) -> Any:
        for argument in (*arguments, *named.values()):
            tensor = _first_tensor(argument)
            if tensor is not None:
                if not tensor.is_cpu:
                    other = self.others.group_for(self, tensor.device)
                    if other is not None:
                        return getattr(other, name)(*arguments, **named)
                break
        return method(self, *arguments, **named)

    return choose
