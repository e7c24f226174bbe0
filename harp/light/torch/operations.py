# SPDX-License-Identifier: Apache-2.0
"""Collectives of Horovod's interface. All ranks call them in the same order, and they block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

import torch
import torch.distributed as dist

from harp.light import names
from harp.light.reducer import KEY
from harp.light.torch import job
from harp.light.torch.compression import Compression

Average = dist.ReduceOp.AVG
Sum = dist.ReduceOp.SUM


def averages(op: Any, average: Optional[bool] = None) -> bool:
    """Whether an operation is Average, its default. `average` is the older way to say so.

    Raises ValueError for other operations, or if both are given.
    """
    if average is not None and op is not None:
        raise ValueError("average and op say the same; give op alone")
    if op is None:
        return average is not False
    if op not in (Average, Sum):
        raise ValueError(f"op is {op}; harp.light knows Average and Sum")
    return bool(op == Average)


def allreduce_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Compression = Compression.none,
    op: Any = None,
) -> torch.Tensor:
    """Averages a tensor over all ranks, or sums it with op=Sum, in place. It blocks.

    name: unused, for Horovod's programs. Raises TypeError for an average of integers, ValueError
    for other operations, and RuntimeError before init or from the collective.
    """
    flat = tensor.detach().reshape(-1)
    by_average = averages(op, average)
    if by_average and not (flat.is_floating_point() or flat.is_complex()):
        raise TypeError(f"the average of {flat.dtype} is no {flat.dtype}; use op=hvd.Sum")
    reducer = job.reducer(compression is Compression.fp16)
    result = reducer.submit_plain(flat, by_average).wait()
    with torch.no_grad():
        tensor.copy_(result.view_as(tensor))
    return tensor


def allreduce(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Compression = Compression.none,
    op: Any = None,
) -> torch.Tensor:
    """The average of a tensor over all ranks, or its sum. The argument keeps its value. Raises
    what allreduce_ raises."""
    return allreduce_(tensor.detach().clone(), average, name, compression, op)


def allgather(tensor: torch.Tensor, name: Optional[str] = None) -> torch.Tensor:
    """The tensors of all ranks one behind the other. They may differ in the first dimension. Raises
    ValueError before init, and RuntimeError from the collective, as all functions below do."""
    here = tensor.detach().contiguous()
    rows = torch.tensor([here.shape[0]], device=here.device)
    all_rows = rows.new_empty(job.size())
    names.all_gather_single(all_rows, rows)
    most = int(all_rows.max())
    padded = here.new_zeros((most, *here.shape[1:]))
    padded[: here.shape[0]] = here
    gathered = here.new_empty((job.size(), *padded.shape))
    names.all_gather_single(gathered.flatten(0, 1), padded)
    return torch.cat([part[:count] for part, count in zip(gathered, all_rows.tolist())])


def broadcast_(
    tensor: torch.Tensor, root_rank: int = 0, name: Optional[str] = None
) -> torch.Tensor:
    """Gives a tensor the root's values, in place."""
    with torch.no_grad():
        sent = tensor.detach().contiguous()
        dist.broadcast(sent, root_rank)
        tensor.copy_(sent)
    return tensor


def broadcast(tensor: torch.Tensor, root_rank: int = 0, name: Optional[str] = None) -> torch.Tensor:
    """The root's tensor. The argument keeps its value."""
    return broadcast_(tensor.detach().clone(), root_rank, name)


def broadcast_object(value: Any, root_rank: int = 0, name: Optional[str] = None) -> Any:
    """The root's object, by pickle."""
    held = [value]
    dist.broadcast_object_list(held, root_rank)
    return held[0]


def broadcast_parameters(
    params: Union[Mapping[str, Any], Iterable[tuple[str, Any]]], root_rank: int = 0
) -> None:
    """Gives a model's state_dict, or its named parameters, the root's values."""
    pairs = params.items() if isinstance(params, Mapping) else params
    for _, tensor in pairs:
        if isinstance(tensor, torch.Tensor):
            broadcast_(tensor, root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Gives an optimizer the root's state. Each rank keeps its own residuals of top-k."""
    state = optimizer.state_dict()
    if KEY in state:
        state[KEY] = {**state[KEY], "residuals": {}, "rank": None}
    optimizer.load_state_dict(broadcast_object(state, root_rank))
