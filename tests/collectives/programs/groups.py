# SPDX-License-Identifier: Apache-2.0
"""The life of a group: made again in the same store, forked, waited for shortly; a tag that is too
large, and a message of more than 2 GiB.

Usage: groups.py FOLDER. The store is a file there. Prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import harp.torch  # noqa: F401

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STORE = Path(sys.argv[1]) / "store"
LONG = (1 << 31) + 4096  # bytes: more than an int counts
CHILD_S = 40.0


def make() -> None:
    store = dist.FileStore(str(STORE), RANKS)
    limit = timedelta(seconds=20)
    dist.init_process_group("harp", store=store, rank=RANK, world_size=RANKS, timeout=limit)


def made_again() -> int:
    for _ in range(3):
        make()
        dist.all_reduce(torch.ones(10))
        dist.destroy_process_group()
        time.sleep(0.3 * RANK)  # the other rank looks into the store first
    return 3


def child_status() -> int:
    """The exit status of a forked child that ends with its interpreter; -1: it does not end."""
    pid = os.fork()
    if pid == 0:
        try:
            dist.barrier()
        except RuntimeError as error:
            sys.exit(7 if "forked process" in str(error) else 8)
        sys.exit(9)
    limit = time.monotonic() + CHILD_S
    while time.monotonic() < limit:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -1


def short_wait() -> bool:
    work = dist.all_reduce(torch.ones(10), async_op=True)
    dist.barrier()  # runs after it
    assert work is not None
    return work.wait(timedelta(milliseconds=1))


def refused_tag() -> str:
    try:
        dist.send(torch.ones(1), 1 - RANK, tag=1 << 31)
    except RuntimeError as error:
        return str(error)
    return "sent"


def long_message() -> bool:
    tensor = torch.full((LONG,), 3 if RANK == 0 else 0, dtype=torch.uint8)
    if RANK == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    return bool((tensor == 3).all())


def main() -> None:
    told: dict[str, object] = {"made": made_again()}
    make()
    told |= {"child": child_status(), "short wait": short_wait(), "tag": refused_tag()}
    told |= {"long": long_message()}
    dist.barrier()
    print(json.dumps(told), flush=True)
    dist.destroy_process_group()


main()
