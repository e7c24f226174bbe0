# SPDX-License-Identifier: Apache-2.0
"""Which algorithm an all_reduce by links takes: a fixed one for each size, or the fastest one that
a group measures as it begins (HARP_ALL_REDUCE=measured).

Different algorithms add in different orders. A rule that is fixed gives the same bits in each run
of a job, and a measured one may not.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import torch
import torch.distributed as dist

from harp.torch import library as lib

VARIABLE = "HARP_ALL_REDUCE"
_REPEATS, _ROUNDS = 4, 2
# An algorithm must be so much faster than the fixed one: smaller differences are noise.
_GAIN = 1.05
_log = logging.getLogger(__name__)


def is_measured() -> bool:
    """Whether the environment asks for it. Raises HarpError for a wrong value."""
    text = os.environ.get(VARIABLE) or "fixed"
    if text not in ("fixed", "measured"):
        raise lib.HarpError(f"{VARIABLE}={text} is neither fixed nor measured: correct or unset it")
    return text == "measured"


def bytes_of(size_class: int) -> int:
    """The largest sums of a class of sizes, bytes: of the last class, those that are measured."""
    return 32768 << (size_class if size_class < lib.SIZE_CLASSES - 1 else size_class + 1)


def _seconds(group: Any, tensor: torch.Tensor) -> float:
    """The time of one all_reduce, seconds."""
    least = float("inf")
    for _ in range(_ROUNDS):
        group.allreduce([tensor]).wait()  # also opens links
        begin = time.perf_counter()
        for _ in range(_REPEATS):
            group.allreduce([tensor]).wait()
        least = min(least, (time.perf_counter() - begin) / _REPEATS)
    return least


def _slowest(group: Any, times: list[float]) -> list[float]:
    """The largest of the times that the ranks have: the same list on all of them."""
    slowest = torch.tensor(times, dtype=torch.float64, device="cpu")
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    group.allreduce([slowest], options).wait()
    return [float(seconds) for seconds in slowest]


def _possible(harp_group: int, wide: bool, size_class: int) -> tuple[list[int], int]:
    """The algorithms for these sizes, and the one that the group has chosen before."""
    choose = lib.library().harp_group_choose
    before = [choose(harp_group, wide, size_class, one) for one in range(len(lib.ALGORITHMS))]
    possible = [algorithm for algorithm, chosen in enumerate(before) if chosen >= 0]
    return possible, before[possible[0]]


def _choose(group: Any, harp_group: int, dtype: torch.dtype, wide: bool, size_class: int) -> None:
    """Measures one class of sizes, and chooses the algorithm whose slowest rank was the fastest."""
    choose = lib.library().harp_group_choose
    possible, fixed = _possible(harp_group, wide, size_class)
    if len(possible) == 1:
        return
    times = []
    tensor = torch.zeros(bytes_of(size_class) // 4, dtype=dtype, device="cpu")
    for algorithm in possible:
        choose(harp_group, wide, size_class, algorithm)
        times.append(_seconds(group, tensor))
    seconds = dict(zip(possible, _slowest(group, times)))
    best = min(possible, key=seconds.__getitem__)
    if seconds[best] * _GAIN > seconds[fixed]:
        best = fixed
    choose(harp_group, wide, size_class, best)
    _log.info(
        "all_reduce of %s, sums of %d KiB: %s (%s)",
        str(dtype)[len("torch.") :],
        bytes_of(size_class) >> 10,
        lib.ALGORITHMS[best],
        ", ".join(f"{lib.ALGORITHMS[one]} {seconds[one] * 1e6:.0f} us" for one in possible),
    )


def measure(group: Any, harp_group: int) -> None:
    """Measures all sizes, and chooses. All ranks call it before they post anything. group: the
    torch.distributed group of harp_group. Raises HarpError if an operation fails."""
    for dtype, wide in ((torch.float32, False), (torch.bfloat16, True)):
        for size_class in range(1, lib.SIZE_CLASSES):
            _choose(group, harp_group, dtype, wide, size_class)
