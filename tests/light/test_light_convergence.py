# SPDX-License-Identifier: Apache-2.0
"""Training on scikit-learn's digits: what compression costs in accuracy.

The long form prints the table of docs/results/light.md: HARP_TEST_FULL=1 pytest -s FILE
"""

from __future__ import annotations

import importlib.util
import os
from statistics import mean, stdev
from typing import Any

import pytest
from light_ranks import run

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("sklearn") is None, reason="no digits: pip install scikit-learn"
    ),
    pytest.mark.slow,
]

FULL = os.environ.get("HARP_TEST_FULL") == "1"
STEPS, BATCH, TESTED, RATE = 600, 32, 597, 0.1
WAYS = ("plain", "fp16", "top-k", "top-k without error feedback")


def trained(way: str, seed: int, digits: tuple[Any, Any]) -> tuple[float, float]:
    """Loss and accuracy on digits that the training did not see."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import harp.light

    torch.manual_seed(seed)
    order = torch.randperm(len(digits[0]))
    images, labels = digits[0][order], digits[1][order]
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    wrapped = DistributedDataParallel(net)
    settings = harp.light.Settings(topk="top-k" in way, topk_ratio=0.01, topk_least=0)
    state = harp.light.State(settings, fp16=way == "fp16", error_feedback="without" not in way)
    wrapped.register_comm_hook(state, harp.light.hook)
    chosen = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    for _ in range(STEPS):
        batch = torch.randint(TESTED, len(images), (BATCH,), generator=chosen)
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(images[batch]), labels[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        scores = net(images[:TESTED])
        loss = nn.functional.cross_entropy(scores, labels[:TESTED])
        right = (scores.argmax(1) == labels[:TESTED]).double().mean()
    return float(loss), 100 * float(right)


def job(ways: tuple[str, ...], seeds: int) -> dict[str, list[tuple[float, float]]]:
    import torch
    from sklearn.datasets import load_digits

    loaded = load_digits()
    digits = torch.tensor(loaded.data, dtype=torch.float32) / 16, torch.tensor(loaded.target)
    return {way: [trained(way, seed, digits) for seed in range(seeds)] for way in ways}


@pytest.mark.timeout(900)
def test_error_feedback_keeps_the_accuracy() -> None:
    ways, seeds = (WAYS, 5) if FULL else (("plain", *WAYS[2:]), 1)
    (found, other) = run(2, job, ways, seeds, timeout=800)
    assert found == other
    losses = {way: [loss for loss, _ in rows] for way, rows in found.items()}
    accuracies = {way: [right for _, right in rows] for way, rows in found.items()}
    for way in ways if FULL else ():
        print(f"| {way} | {mean(losses[way]):.3f} ± {stdev(losses[way]):.3f} "
              f"| {mean(accuracies[way]):.2f} ± {stdev(accuracies[way]):.2f} |")  # fmt: skip
    plain = mean(accuracies["plain"])
    assert plain > 90
    assert mean(accuracies["top-k"]) > plain - 1
    assert mean(accuracies["top-k without error feedback"]) < plain - 2
