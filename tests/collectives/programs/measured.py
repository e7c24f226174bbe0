# SPDX-License-Identifier: Apache-2.0
"""Groups that measure the algorithms of all_reduce as they begin: of all ranks, while torch's
default device has no memory, and of ranks 0 and 2. Then one that fails, because the last rank has
another value of the variable, or has no memory left amid the measuring.

Usage: measured.py VALUE. Empty: no memory. Prints a line of JSON: the log of the two groups,
whether the sums are right, and the third group's error and the seconds until it came.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from harp.torch import algorithms

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
COUNTS = (0, 1, 3, 1000, 20_000, 100_000, 3_000_000)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def take(self) -> list[str]:
        taken, self.lines = self.lines, []
        return taken


def sums_are_right(group: Any, ranks: int) -> bool:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for count in COUNTS:
            tensor = torch.arange(count, dtype=torch.int64).remainder(5).to(dtype)
            right = tensor * ranks
            dist.all_reduce(tensor, group=group)
            if not torch.equal(tensor, right):
                return False
    return True


def spoil(value: str) -> None:
    """Makes this rank's next group fail."""
    if value:
        os.environ["HARP_ALL_REDUCE"] = value
        return
    measured, seconds = [], algorithms._seconds

    def fail(*args: Any) -> float:
        measured.append(args)
        if len(measured) == 5:
            raise MemoryError
        return seconds(*args)

    algorithms._seconds = fail


def meet(store: dist.Store, name: str) -> None:
    """Waits for all ranks, at most 60 s."""
    store.add(name, 1)
    limit = time.monotonic() + 60
    while store.add(name, 0) < RANKS and time.monotonic() < limit:
        time.sleep(0.02)


def main() -> None:
    log = logging.getLogger("harp.torch.algorithms")
    log.setLevel(logging.INFO)
    lines = Lines()
    log.addHandler(lines)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=RANK == 0
    )

    def initialise(name: str) -> None:
        dist.init_process_group(
            "harp", store=dist.PrefixStore(name, store), rank=RANK, world_size=RANKS
        )

    torch.set_default_device("meta")
    initialise("measured")
    torch.set_default_device("cpu")
    told: dict[str, Any] = {"lines": lines.take()}
    pair = dist.new_group([0, 2])
    told["pair"] = lines.take()
    told["right"] = sums_are_right(None, RANKS)
    if RANK in (0, 2):
        told["right"] &= sums_are_right(pair, 2)
    dist.barrier()
    dist.destroy_process_group()
    if RANK == RANKS - 1:
        spoil(sys.argv[1])
    begin, kept = time.monotonic(), []
    try:
        initialise("third")
    except (RuntimeError, MemoryError) as failure:
        kept.append(failure)  # and with it the group
    told.update(error=repr(kept[0]), seconds=time.monotonic() - begin)
    meet(store, "ended")
    if RANK > 0:
        store.add("left", 1)
    else:
        meet(store, "left")
    print(json.dumps(told), flush=True)


main()
