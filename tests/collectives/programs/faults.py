# SPDX-License-Identifier: Apache-2.0
"""Operations that cannot end: each rank but the guilty one, the last, gets an exception in time.

Prints a line of JSON for each phase: its name, the seconds until the exception, and its text.
The last phase kills the last rank.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import harp.torch

TIMEOUT_S = 3.0


def expect_failure(phase: str, run: Callable[[], object]) -> None:
    began = time.monotonic()
    try:
        run()
        text = "no exception"
    except RuntimeError as error:
        text = str(error)
    told = {"phase": phase, "seconds": time.monotonic() - began, "text": text}
    print(json.dumps(told), flush=True)


def many(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    while True:
        dist.all_reduce(tensor, group=group)


def main() -> None:
    dist.init_process_group("gloo")
    rank, guilty = dist.get_rank(), dist.get_world_size() - 1
    innocent = rank != guilty

    def fresh() -> dist.ProcessGroup:
        dist.barrier()
        return dist.new_group(backend="harp", timeout=timedelta(seconds=TIMEOUT_S))

    short, long = torch.ones(2), torch.ones(500_000)

    group = fresh()
    if innocent:
        expect_failure("absent, short", lambda: dist.all_reduce(short, group=group))
        expect_failure("group is dead", lambda: dist.barrier(group=group))
    group = fresh()
    if innocent:
        work = dist.all_reduce(long, group=group, async_op=True)
        future = work.get_future().then(lambda one: one.value())
        expect_failure("absent, future", future.wait)
        expect_failure("absent, work", work.wait)
        print(json.dumps({"phase": "success", "text": str(work.is_success())}), flush=True)

    group = fresh()
    if innocent:
        tensor = torch.zeros(100_000)
        expect_failure("aborted", lambda: dist.recv(tensor, guilty, group=group))
    else:
        time.sleep(0.3)
        dist.send(torch.ones(10), 0, group=group, tag=9)
        assert isinstance(group, harp.torch.HarpProcessGroup)
        group.abort()

    group = fresh()
    if innocent:
        dist.barrier(group=group, async_op=True).get_future()
        work = dist.all_reduce(long, group=group, async_op=True)
    dist.barrier()  # a rank that shuts down ends the others' links
    if innocent:
        group.shutdown()
        expect_failure("shut down", work.wait)

    group = fresh()
    size = 10 if innocent else 10_000
    expect_failure("sizes differ", lambda: dist.all_reduce(torch.ones(size), group=group))

    # Gloo must not see the death of the last rank: its store and barrier are not used again.
    group = fresh()
    if innocent:
        expect_failure("killed", lambda: many(long, group))
    else:
        for _ in range(20):
            dist.all_reduce(long, group=group)
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdout.flush()
    os._exit(0)


main()
