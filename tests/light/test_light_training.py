# SPDX-License-Identifier: Apache-2.0
"""Training by the hook of DDP and by DistributedOptimizer, against one process."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from light_ranks import run

pytestmark = pytest.mark.torch

STEPS, BATCH = 4, 8


def model() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 30), nn.Linear(30, 5))


def batch(rank: int, step: int) -> tuple[Any, Any]:
    import torch

    data = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(BATCH, 20, generator=data), torch.randint(0, 5, (BATCH,), generator=data)


def backward(net: Any, ranks: list[int], step: int) -> None:
    import torch

    inputs, labels = (torch.cat(parts) for parts in zip(*(batch(rank, step) for rank in ranks)))
    torch.nn.functional.cross_entropy(net(inputs), labels).backward()


def values(net: Any) -> list[float]:
    import torch

    return torch.cat([one.detach().reshape(-1) for one in net.parameters()]).tolist()


def alone(ranks: int) -> list[float]:
    import torch

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(net, list(range(ranks)), step)
        optimizer.step()
    return values(net)


def by_hook() -> list[float]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import harp.light

    net = DistributedDataParallel(model(), bucket_cap_mb=0.003)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net.register_comm_hook(harp.light.State(optimizer=optimizer), harp.light.hook)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(net, [dist.get_rank()], step)
        optimizer.step()
    return values(net)


def by_horovod(early: str = "") -> list[float]:
    import torch

    import harp.light.torch as hvd

    hvd.init()
    net = model()
    if hvd.rank():
        with torch.no_grad():
            for one in net.parameters():
                one.zero_()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    assert isinstance(optimizer, torch.optim.SGD)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(net, [hvd.rank()], step)
        if early:
            optimizer.synchronize()
        with optimizer.skip_synchronize() if early == "skip" else nullcontext():
            optimizer.step()
    hvd.shutdown()
    return values(net)


def passes(wrong: bool) -> tuple[list[float], str]:
    """Errors of the gradients of two passes, and what a third pass raised."""
    import torch

    import harp.light.torch as hvd

    hvd.init()
    net, right, text = model(), model(), ""
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.0), backward_passes_per_step=2
    )
    for step in range(2):
        backward(net, [hvd.rank()], step)
        for rank in range(2):
            backward(right, [rank], step)
    if wrong:
        try:
            backward(net, [hvd.rank()], 2)
        except RuntimeError as error:
            text = str(error)
    optimizer.step()
    hvd.shutdown()
    pairs = list(zip(net.parameters(), right.parameters()))
    return [float((2 * a.grad - b.grad).abs().max()) for a, b in pairs], text


def test_passes_add_up_before_the_reduction() -> None:
    for differences, _ in run(2, passes, False):
        assert max(differences) < 1e-6


def test_a_pass_too_many_is_an_error() -> None:
    for _, text in run(2, passes, True):
        assert text.startswith("a gradient came after its reduction had begun")


def same(found: Sequence[list[float]], right: list[float]) -> bool:
    return all(one == found[0] for one in found) and all(
        abs(a - b) < 1e-5 for a, b in zip(found[0], right)
    )


def test_hook_equals_one_process_with_all_batches() -> None:
    assert same(run(2, by_hook), alone(2))


def failing_hook() -> str:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import harp.light

    net = DistributedDataParallel(model())
    state = harp.light.State()
    net.register_comm_hook(state, harp.light.hook)
    state.residuals[next(net.parameters())] = torch.zeros(2)  # does not fit
    try:
        backward(net, [dist.get_rank()], 0)
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_failed_reduction_raises_in_the_backward_pass() -> None:
    assert all("shape" in text for text in run(2, failing_hook))


def late_rank() -> tuple[str, float]:
    """What the backward pass raises if the other rank does not come, and the seconds until then."""
    import time
    from datetime import timedelta

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import harp.light

    group = dist.new_group(timeout=timedelta(seconds=3))
    net = DistributedDataParallel(model(), process_group=group)
    net.register_comm_hook(harp.light.State(process_group=group), harp.light.hook)
    text, began = "", time.monotonic()
    if dist.get_rank() == 0:
        try:
            backward(net, [0], 0)
        except RuntimeError as error:
            text = str(error)
    seconds = time.monotonic() - began
    dist.barrier()
    return text, seconds


def test_backward_pass_has_the_timeout_of_the_training() -> None:
    (text, seconds), _ = run(2, late_rank)
    assert text and seconds < 20  # the job's own is 60 s


class WithoutOptions:
    @property
    def options(self) -> None:
        raise RuntimeError("Backend mpi does not implement getBackendOptions.")


def test_backend_without_options_shows_no_timeout() -> None:
    from datetime import timedelta
    from types import SimpleNamespace

    from harp.light.groups import timeout_of

    limit = timedelta(seconds=7)
    shown = SimpleNamespace(options=SimpleNamespace(_timeout=limit))
    backends: dict[str, Any] = {"cpu": WithoutOptions()}
    group = SimpleNamespace(_device_types=backends.keys(), _get_backend=backends.get)
    assert timeout_of(group) is None
    backends["cuda"] = shown
    assert timeout_of(group) == limit


def by_bucket_sizes() -> list[list[float]]:
    found = []
    for fusion in ("0", "2500", "26214400"):
        os.environ["HOROVOD_FUSION_THRESHOLD"] = fusion
        found.append(by_horovod())
    return found


def test_optimizer_equals_one_process_with_all_batches() -> None:
    right = alone(2)
    for found in zip(*run(2, by_bucket_sizes, HOROVOD_CYCLE_TIME="1")):
        assert same(found, right)


def by_scheduler() -> list[float]:
    """A scheduler is made before the distributed optimizer, and another one after it. One parameter
    has no gradient."""
    import torch
    from torch.optim.lr_scheduler import StepLR

    import harp.light.torch as hvd

    hvd.init()
    net = model()
    unused = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*net.parameters(), unused], lr=0.1, momentum=0.9)
    schedulers = [StepLR(optimizer, 100)]
    optimizer = hvd.DistributedOptimizer(optimizer)
    schedulers.append(StepLR(optimizer, 100))
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(net, [hvd.rank()], step)
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    hvd.shutdown()
    return values(net)


def test_scheduler_that_was_made_first_does_not_bypass_the_average() -> None:
    assert same(run(2, by_scheduler), alone(2))


def reductions(early: str) -> tuple[list[float], int]:
    from harp.light.reducer import Reducer

    submitted, submit = [], Reducer.submit

    def counted(self: Any, *args: Any) -> Any:
        submitted.append(args)
        return submit(self, *args)

    Reducer.submit = counted  # type: ignore[method-assign]
    return by_horovod(early), len(submitted)


def test_gradients_are_reduced_once_before_a_step() -> None:
    for early in ("", "skip", "step"):
        found = run(2, reductions, early)
        assert same([one for one, _ in found], alone(2))
        assert [count for _, count in found] == [STEPS] * 2  # one bucket


def test_buckets_hold_parameters_up_to_the_threshold() -> None:
    import torch

    from harp.light.torch.optimizer import fuse

    parts = [torch.zeros(count) for count in (10, 10, 30, 5)] + [torch.zeros(5, dtype=torch.half)]

    def sizes(most: int) -> list[list[int]]:
        return [[one.numel() for one in bucket.parameters] for bucket in fuse(parts, most)]

    assert sizes(80) == [[10, 10], [30], [5], [5]]
    assert sizes(10**6) == [[10, 10, 30, 5], [5]]
    assert sizes(0) == [[10], [10], [30], [5], [5]]


def round_trip(adam: bool) -> list[bool]:
    import torch
    import torch.distributed as dist

    import harp.light.torch as hvd

    hvd.init()

    def make() -> tuple[Any, Any]:
        net = model()
        kind = torch.optim.Adam if adam else torch.optim.SGD
        plain = kind(net.parameters(), lr=0.01)
        return net, hvd.DistributedOptimizer(plain, warmup_steps=4)

    def train(net: Any, optimizer: Any, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            backward(net, [dist.get_rank()], step)
            optimizer.step()

    net, optimizer = make()
    train(net, optimizer, range(3))
    weights, saved = copy.deepcopy(net.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(net, optimizer, range(3, 6))
    results = []
    for keep in (True, False):
        again, other = make()
        again.load_state_dict(weights)
        state = copy.deepcopy(saved)
        if not keep:
            state["light"]["residuals"] = {}
        other.load_state_dict(state)
        # Rank 0's state for all: each rank keeps its own residuals.
        hvd.broadcast_optimizer_state(other, root_rank=0)
        train(again, other, range(3, 6))
        results.append(values(again) == values(net))
    # A state without LightCC's part is that of a plain optimizer.
    saved.pop("light")
    make()[1].load_state_dict(saved)
    hvd.shutdown()
    return results


@pytest.mark.parametrize("adam", [False, True])
def test_residuals_are_saved_and_restored_with_the_optimizer(adam: bool) -> None:
    found = run(2, round_trip, adam, LIGHT_TOPK_ALLREDUCE="1", LIGHT_TOPK_THRESHOLD="0")
    assert found == [[True, False]] * 2


def saved_late() -> tuple[int, int]:
    import torch
    import torch.distributed as dist

    import harp.light.torch as hvd

    hvd.init()
    net, rank = model(), hvd.rank()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    hvd.shutdown()
    dist.barrier()
    dist.destroy_process_group()
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    again = dist.FileStore(os.environ["AGAIN"], 2)
    dist.init_process_group("gloo", store=again, rank=rank, world_size=2)  # light_ranks needs it
    return state["light"]["rank"], len(state["param_groups"])


def test_state_is_saved_after_the_end_of_the_job(tmp_path: Path) -> None:
    assert run(2, saved_late, AGAIN=str(tmp_path / "again")) == [(0, 1), (1, 1)]


def other_rank() -> tuple[int, int]:
    import torch

    import harp.light.torch as hvd

    hvd.init()
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    backward(net, [hvd.rank()], 0)
    optimizer.step()
    states = [None] * hvd.size()
    torch.distributed.all_gather_object(states, optimizer.state_dict())
    fresh = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    fresh.load_state_dict(states[0])
    hvd.shutdown()
    loaded = fresh.state_dict()["light"]
    return loaded["step"], len(loaded["residuals"])


def test_the_file_of_one_rank_gives_its_residuals_to_that_rank_alone() -> None:
    found = run(2, other_rank, LIGHT_TOPK_ALLREDUCE="1", LIGHT_TOPK_THRESHOLD="0")
    assert found == [(1, 6), (1, 0)]
