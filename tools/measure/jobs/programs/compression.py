# SPDX-License-Identifier: Apache-2.0
"""One rank of tools/jobs compression. Usage: compression.py ROUNDS BYTES

Reduces a bucket of gradients by each way of harp.light over harp, in turns. Rank 0 prints a record:
the seconds of each round by way, and those that top-k spends on choosing values.
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist

import harp.torch  # noqa: F401
from harp.light import Settings, State, topk

RATIO = 0.01


def main() -> None:
    rounds, size = map(int, sys.argv[1:])
    dist.init_process_group("harp")
    parameter = torch.nn.Parameter(torch.zeros(size // 4))
    rest = torch.zeros(size // 4)
    ways = {
        "plain": State(Settings()),
        "fp16": State(Settings(), fp16=True),
        "top-k": State(Settings(topk=True, topk_ratio=RATIO)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in (*ways, "choose")}
    data = torch.Generator().manual_seed(dist.get_rank())
    for number in range(rounds + 1):  # the first one makes links and memory
        gradient = torch.randn(size // 4, generator=data)
        for name, state in ways.items():
            flat = gradient.clone()
            dist.barrier()
            began = time.perf_counter()
            state.submit(flat, [(parameter, flat)]).wait()
            took = time.perf_counter() - began
            if number:
                seconds[name].append(took)
        began = time.perf_counter()
        topk.take(gradient, rest, RATIO, fp16=False)
        if number:
            seconds["choose"].append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(json.dumps({"size": size, "ratio": RATIO, **seconds}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
