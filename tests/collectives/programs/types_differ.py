# SPDX-License-Identifier: Apache-2.0
"""Calls whose input and output have different types, on a group of one rank. Prints a line of JSON
with what each raised."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import harp.torch

FLOATS, INTEGERS = torch.ones(4), torch.zeros(4, dtype=torch.int32)


def calls(group: Any) -> dict[str, Callable[[], Any]]:
    """The group's own methods: torch looks at the types in some of its functions."""
    rooted = dist.GatherOptions(), dist.ScatterOptions()
    for options in rooted:
        options.rootRank = 0
    gathered, scattered = rooted
    return {
        "reduce_scatter": lambda: group.reduce_scatter([INTEGERS], [[FLOATS]]),
        "reduce_scatter_single": lambda: group.reduce_scatter_single(INTEGERS, FLOATS),
        "all_gather": lambda: group.allgather([[INTEGERS]], [FLOATS]),
        "all_gather_single": lambda: group.all_gather_single(INTEGERS, FLOATS),
        "all_to_all": lambda: group.alltoall([INTEGERS], [FLOATS]),
        "all_to_all_single": lambda: group.all_to_all_single(INTEGERS, FLOATS, [], []),
        "gather": lambda: group.gather([[INTEGERS]], [FLOATS], gathered),
        "scatter": lambda: group.scatter([INTEGERS], [[FLOATS]], scattered),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(INTEGERS, FLOATS),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(INTEGERS, FLOATS),
        # Each pair of these has one type.
        "well": lambda: group.allgather_coalesced(
            [[torch.empty(4), INTEGERS.clone()]], [FLOATS, INTEGERS]
        ).wait(),
    }


def said(call: Callable[[], Any]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return "accepted"


def main() -> None:
    dist.init_process_group("harp", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert isinstance(group, harp.torch.HarpProcessGroup)
    print(json.dumps({name: said(call) for name, call in calls(group).items()}), flush=True)
    dist.destroy_process_group()


main()
