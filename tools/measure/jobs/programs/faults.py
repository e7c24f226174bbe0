# SPDX-License-Identifier: Apache-2.0
"""One rank of each trial of tools/jobs faults. Usage: faults.py TIMEOUT_S

Reads a line for each trial: RANK RANKS ADDRESS PORT. The trial runs in a fork of this process. The
fork prints "training" after the first steps. It trains by DDP until rank 0 gets SIGUSR2, and prints
one of these:

    {"end": "went on", "steps": N, "same": whether all ranks have the same parameters}
    {"end": "error", "at": time.monotonic(), "text": the exception's}

SIGUSR1 makes the rank slow: it computes its next two steps for 0.6 of the timeout each.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import harp.torch
from tools.measure.jobs.programs.forks import serve, tell

STORE_S = 120  # for the ranks to meet, on a busy machine
FIRST_STEPS = 5
SLOW_STEPS, SLOW_SHARE = 2, 0.6
WIDTH = 512
STEP_S = 0.01  # of computing; leaves room for the other ranks on a machine with few cores


class Rank:
    """The fork of a trial."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.slow_steps = 0
        self.stops = False
        signal.signal(signal.SIGUSR1, self._slow_down)
        signal.signal(signal.SIGUSR2, self._stop)

    def _slow_down(self, *_: object) -> None:
        self.slow_steps = SLOW_STEPS

    def _stop(self, *_: object) -> None:
        self.stops = True

    def compute(self) -> None:
        if self.slow_steps:
            self.slow_steps -= 1
            time.sleep(SLOW_SHARE * self.timeout_s)
        else:
            time.sleep(STEP_S)

    def train(self) -> tuple[int, torch.nn.Module]:
        """Trains until rank 0 stops. Returns the steps and the model."""
        group = dist.group.WORLD
        assert isinstance(group, harp.torch.HarpProcessGroup)
        torch.manual_seed(1)
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batches = torch.Generator().manual_seed(dist.get_rank())
        steps = 0
        while True:
            optimizer.zero_grad()
            self.compute()
            model(torch.randn(4, WIDTH, generator=batches)).square().mean().backward()
            optimizer.step()
            steps += 1
            if steps == FIRST_STEPS:
                group.set_timeout(timedelta(seconds=self.timeout_s))
                tell(training=True)
            stops = torch.tensor(float(self.stops))
            dist.all_reduce(stops, dist.ReduceOp.MAX)
            if stops:
                return steps, model.module

    def run(self, rank: int, ranks: int, address: str, port: int) -> None:
        store = dist.TCPStore(address, port, ranks, rank == 0, timedelta(seconds=STORE_S))
        # A busy machine may start a rank late. So the timeout begins with the training.
        start = timedelta(seconds=STORE_S)
        dist.init_process_group("harp", store=store, rank=rank, world_size=ranks, timeout=start)
        try:
            steps, model = self.train()
        except RuntimeError as error:
            tell(end="error", at=time.monotonic(), text=str(error))
            return
        mine = torch.cat([one.detach().flatten() for one in model.parameters()])
        rank_0s = mine.clone()
        dist.broadcast(rank_0s, 0)
        tell(end="went on", steps=steps, same=torch.equal(mine, rank_0s))
        dist.barrier()
        dist.destroy_process_group()


def main() -> None:
    timeout_s = float(sys.argv[1])

    def run(args: Sequence[str]) -> None:
        rank, ranks, address, port = args
        Rank(timeout_s).run(int(rank), int(ranks), address, int(port))

    serve(run)


if __name__ == "__main__":
    main()
