# SPDX-License-Identifier: Apache-2.0
"""A group that measures the algorithms of all_reduce as it begins. Then, one whose last rank has
the variable's value VALUE.

Usage: measured.py VALUE. Prints a line of JSON: the lines of the log, whether the sums are right,
and the second group's error.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time

import torch
import torch.distributed as dist

import harp.torch  # noqa: F401

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def sums_are_right() -> bool:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for count in (1, 1000, 20_000, 100_000, 3_000_000):
            tensor = torch.arange(count, dtype=torch.int64).remainder(5).to(dtype)
            right = tensor * RANKS
            dist.all_reduce(tensor)
            if not torch.equal(tensor, right):
                return False
    return True


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

    initialise("measured")
    right = sums_are_right()
    dist.barrier()
    dist.destroy_process_group()
    if RANK == RANKS - 1:
        os.environ["HARP_ALL_REDUCE"] = sys.argv[1]
    error = ""
    try:
        initialise("second")
    except RuntimeError as failure:
        error = str(failure)
    store.add("ended", 1)
    while RANK == 0 and store.add("ended", 0) < RANKS:  # the others still read the store
        time.sleep(0.02)
    print(json.dumps({"lines": lines.lines, "right": right, "error": error}), flush=True)


main()
