# SPDX-License-Identifier: Apache-2.0
"""Threads post their first operations of a group while another one ends it. Prints a line of JSON
with the sentences that the threads got at last, for each group."""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from harp.torch import group as harp_group
from harp.torch import library as lib

GROUPS, THREADS = 6, 3
LIMIT_S = 10.0  # for all waits of a group

post = lib.post


def post_slowly(*arguments: Any) -> int:
    """A thread may lose its core just before it posts."""
    time.sleep(0.05)
    return post(*arguments)


def post_until_failure(group: Any, works: list[Any], said: list[str]) -> None:
    try:
        while True:
            works.append(group.allreduce([torch.ones(100)]))
            time.sleep(0.05)
    except RuntimeError as error:
        said.append(str(error))


def end_while_posting(end: str) -> list[str]:
    group = harp_group.create(dist.HashStore(), 0, 1, timedelta(seconds=60))
    works: list[Any] = []
    said: list[str] = []
    arguments = (group, works, said)
    posting = [threading.Thread(target=post_until_failure, args=arguments, daemon=True)
               for _ in range(THREADS)]  # fmt: skip
    for thread in posting:
        thread.start()
    time.sleep(0.01)
    getattr(group, end)()
    limit = time.monotonic() + LIMIT_S
    for thread in posting:
        thread.join(max(0.0, limit - time.monotonic()))
    for work in works:
        while not work.is_completed() and time.monotonic() < limit:
            time.sleep(0.001)
    said.extend("a wait does not end" for work in works if not work.is_completed())
    group.shutdown()
    return said


def main() -> None:
    lib.post = post_slowly
    ends = ("shutdown", "abort")
    print(json.dumps({end: [end_while_posting(end) for _ in range(GROUPS)] for end in ends}))


main()
