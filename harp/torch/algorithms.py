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
_log = logging.getLogger(__name__)


def is_measured() -> bool:
    """Whether the environment asks for it. Raises HarpError for a wrong value."""
    text = os.environ.get(VARIABLE) or "fixed"
    if text not in ("fixed", "measured"):
        raise lib.HarpError(f"{VARIABLE}={text} is neither fixed nor measured: correct or unset it")
    return text == "measured"


def bytes_of(size: int) -> int:
    """The most bytes of sums of a size (harp_group_choose): of the last one, those that are
    measured."""
    return 32768 << (size if size < lib.SIZES - 1 else size + 1)


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


def _choose(group: Any, harp_group: int, dtype: torch.dtype, wide: bool, size: int) -> str:
    """Measures one size, and chooses the algorithm whose slowest rank was the fastest. All ranks
    get the same times in the end, so they choose the same. Returns a line for the log."""
    choose = lib.library().harp_group_choose
    tensor = torch.zeros(bytes_of(size) // 4, dtype=dtype)
    measured, times = [], []
    for algorithm in range(len(lib.ALGORITHMS)):
        if choose(harp_group, wide, size, algorithm) == 0:
            measured.append(algorithm)
            times.append(_seconds(group, tensor))
    slowest = torch.tensor(times, dtype=torch.float64)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    group.allreduce([slowest], options).wait()
    best = measured[int(slowest.argmin())]
    choose(harp_group, wide, size, best)
    told = ", ".join(
        f"{lib.ALGORITHMS[algorithm]} {seconds * 1e6:.0f} us"
        for algorithm, seconds in zip(measured, slowest.tolist())
    )
    return f"{bytes_of(size) >> 10} KiB: {lib.ALGORITHMS[best]} ({told})"


def measure(group: Any, harp_group: int) -> None:
    """Measures all sizes, and chooses. All ranks call it before they post anything. group: the
    torch.distributed group of harp_group. Raises HarpError if an operation fails."""
    for dtype, wide in ((torch.float32, False), (torch.bfloat16, True)):
        for size in range(1, lib.SIZES):
            line = _choose(group, harp_group, dtype, wide, size)
            _log.info("all_reduce of %s, sums of %s", str(dtype)[len("torch.") :], line)
