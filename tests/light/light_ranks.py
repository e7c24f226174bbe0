# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch.distributed over Gloo on the loopback interface, without HARP."""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

_context = multiprocessing.get_context("forkserver")
# Each rank is then a fork of a process that has all modules.
_context.set_forkserver_preload(["harp.light.torch", "torch._dynamo", "pytest"])


def _rank(
    rank: int, ranks: int, store: str, environment: dict[str, str], results: Any, work: Any,
    args: tuple[Any, ...],
) -> None:  # fmt: skip
    os.environ.update(environment, GLOO_SOCKET_IFNAME="lo", LOCAL_RANK=str(rank))
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank,
                                world_size=ranks, timeout=timedelta(seconds=60))  # fmt: skip
        answer = work(*args)
        dist.barrier()
        dist.destroy_process_group()
        results.put((rank, True, answer))
    except BaseException:
        results.put((rank, False, traceback.format_exc()))


def run(
    ranks: int, work: Callable[..., Any], *args: Any, timeout: float = 100, **variables: str
) -> list[Any]:
    """What `work(*args)` returns on each rank. Fails with the first trace of a rank.

    Answers are plain Python values. `variables` are set on all ranks before.
    """
    return run_each([variables] * ranks, work, *args, timeout=timeout)


def run_each(
    environments: list[Mapping[str, str]], work: Callable[..., Any], *args: Any,
    timeout: float = 100,
) -> list[Any]:  # fmt: skip
    """As `run`, with variables for each rank."""
    ranks = len(environments)
    results = _context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        children = [
            _context.Process(target=_rank, daemon=True,
                             args=(rank, ranks, store, dict(one), results, work, args))
            for rank, one in enumerate(environments)
        ]  # fmt: skip
        for child in children:
            child.start()
        answers: dict[int, Any] = {}
        try:
            for _ in children:
                rank, well, answer = results.get(timeout=timeout)
                assert well, f"rank {rank}:\n{answer}"
                answers[rank] = answer
            for child in children:
                child.join(10)
        except queue.Empty:
            raise AssertionError(f"ranks hang: only {sorted(answers)} answered") from None
        finally:
            for child in children:
                child.kill()
                child.join()
    return [answers[rank] for rank in range(ranks)]
