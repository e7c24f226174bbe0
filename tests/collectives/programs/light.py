# SPDX-License-Identifier: Apache-2.0
"""Reductions of harp.light over harp and over Gloo: the same gradients give the same averages.

Exit: 0, or 1 if they differ.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import harp.light.torch as hvd
from harp.light import Settings, State

SIZE, STEPS = 300001, 3
WAYS = {
    "plain": (Settings(), False),
    "2D": (Settings(two_d=True, intra_size=2), False),
    "2D of 16 bits": (Settings(two_d=True, intra_size=2), True),
    "top-k": (Settings(topk=True), False),
    "top-k of 16 bits": (Settings(topk=True, topk_fp16=True), False),
}


def averages(state: State) -> list[torch.Tensor]:
    data = torch.Generator().manual_seed(dist.get_rank())
    parameter = torch.nn.Parameter(torch.zeros(SIZE))
    found = []
    for _ in range(STEPS):
        flat = torch.randn(SIZE, generator=data)
        found.append(state.submit(flat, [(parameter, flat)]).wait())
        state.step += 1
    return found


def main() -> int:
    hvd.init()  # by default over harp, without a GPU
    gloo = dist.new_group(backend="gloo")
    wrong = [] if dist.get_backend() == "harp" else ["the backend"]
    for name, (settings, fp16) in WAYS.items():
        ours, theirs = State(settings, fp16=fp16), State(settings, gloo, fp16=fp16)
        close = 2e-3 if fp16 else 1e-5
        pairs = zip(averages(ours), averages(theirs))
        if not all(torch.allclose(a, b, atol=close) for a, b in pairs):
            wrong.append(name)
    if hvd.allreduce(torch.tensor(hvd.rank()), op=hvd.Sum) != sum(range(hvd.size())):
        wrong.append("allreduce")
    rank = hvd.rank()
    hvd.shutdown()
    print(f"rank {rank}: different: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
