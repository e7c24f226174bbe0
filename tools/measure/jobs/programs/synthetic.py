# SPDX-License-Identifier: Apache-2.0
"""Images per second of data-parallel training on random images.

A program for Horovod's interface, as users have them: its import is changed, and nothing else. It
takes the options of Horovod's own synthetic benchmark, and prints its lines. torchrun and mpirun
start it.
"""

from __future__ import annotations

import argparse
import timeit
from statistics import mean, pstdev

import torch
from torch import nn

import harp.light.torch as hvd

IMAGE, CLASSES = 64, 1000  # pixels of a side


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions beside a shortcut; halves the image and doubles the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        out = 2 * channels
        self.path = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out),
            nn.ReLU(), nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(channels, out, 1, stride=2, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(images) + self.shortcut(images))


def network() -> nn.Module:
    """A residual network with 5.4 million parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        Residual(32), Residual(64), Residual(128), Residual(256),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES),
    )  # fmt: skip


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Images per second on random images")
    parser.add_argument("--fp16-allreduce", action="store_true", help="reduce in 16 bits")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--num-warmup-batches", type=int, default=4)
    parser.add_argument("--num-batches-per-iter", type=int, default=4)
    parser.add_argument("--num-iters", type=int, default=5)
    return parser.parse_args()


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


def main() -> None:
    args = options()
    hvd.init()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    images = torch.randn(args.batch_size, 3, IMAGE, IMAGE)
    labels = torch.randint(CLASSES, (args.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    say(f"Batch size: {args.batch_size}, parameters: {sum(p.numel() for p in model.parameters())}")
    say(f"Number of CPUs: {hvd.size()}")
    timeit.timeit(step, number=args.num_warmup_batches)
    rates = []
    for number in range(args.num_iters):
        seconds = timeit.timeit(step, number=args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / seconds)
        say(f"Iter #{number}: {rates[-1]:.1f} img/sec per CPU")
    rate, spread = mean(rates), 1.96 * pstdev(rates)
    say(f"Img/sec per CPU: {rate:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {hvd.size()} CPU(s): {hvd.size() * rate:.1f} "
        f"+-{hvd.size() * spread:.1f}")  # fmt: skip
    hvd.shutdown()


if __name__ == "__main__":
    main()
