# SPDX-License-Identifier: Apache-2.0
"""One rank of tools/gpu, a separate program for a Python with PyTorch.

Usage: gpu_rank.py TASK. TASK is a JSON document: rank, ranks, host and port of rank 0, sizes in
bytes, iterations, limit_s. The environment selects NCCL's network. Each line "GPU {...}" on
standard output is a document with results; the other lines are PyTorch's and NCCL's.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from datetime import timedelta
from functools import partial
from typing import Any

from tools.measure.gpu_train import REDUCTIONS, train

INT32, FLOAT32, SUM = 2, 7, 0  # ncclDataType_t, ncclRedOp_t
WARMUP = 3


def say(kind: str, **found: Any) -> None:
    print("GPU " + json.dumps({"kind": kind, **found}), flush=True)


def pattern(torch: Any, like: Any, rank: int) -> Any:
    """Small integers that differ from rank to rank, in the size, type and device of a tensor.
    Their sums are exact in every type."""
    index = torch.arange(like.numel(), device=like.device, dtype=torch.int64)
    return ((index * (7 + rank) + 13 * rank) % 1001).to(like.dtype)


def wrong(torch: Any, reduced: Any, ranks: int) -> int:
    """The number of elements that differ from the sum of all ranks' patterns."""
    expected = sum(pattern(torch, reduced, rank) for rank in range(ranks))
    return int((reduced != expected).sum().item())


def check(
    torch: Any, task: dict[str, Any], size: int, name: str, reduce: Any, device: str = "cuda"
) -> None:
    for dtype in (torch.float32, torch.int32):
        like = torch.empty(max(1, size // 4), dtype=dtype, device=device)
        data = pattern(torch, like, task["rank"])
        reduce(data)
        torch.cuda.synchronize()
        found = wrong(torch, data, task["ranks"])
        say("checked", by=name, size=size, dtype=str(dtype).split(".")[1], wrong=found)


def clock(torch: Any, task: dict[str, Any], size: int, name: str, reduce: Any) -> None:
    """Measures the time of one all-reduce with CUDA events."""
    data = torch.zeros(max(1, size // 4), device="cuda", dtype=torch.float32)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(WARMUP):
        reduce(data)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(task["iterations"]):
        reduce(data)
    end.record()
    torch.cuda.synchronize()
    time_us = begin.elapsed_time(end) * 1e3 / task["iterations"]
    # As nccl-tests: 2 (n - 1) / n of the size pass through each rank's link.
    algbw = size / time_us / 1e3
    busbw = algbw * 2 * (task["ranks"] - 1) / task["ranks"]
    say("timed", by=name, size=size, time_us=time_us, algbw_gbs=algbw, busbw_gbs=busbw)


def run_all(torch: Any, task: dict[str, Any], name: str, reduce: Any) -> None:
    for size in task["sizes"]:
        check(torch, task, size, name, reduce)
    for size in task["sizes"]:
        clock(torch, task, size, name, reduce)


def check_devices(torch: Any, task: dict[str, Any]) -> None:
    """Checks a group with two backends: HARP's own sums CPU tensors, and NCCL sums GPU tensors."""
    import harp.torch  # noqa: F401, which makes the backend known

    group = torch.distributed.new_group(backend="cpu:harp,cuda:nccl")
    for device in ("cpu", "cuda"):
        for size in task["sizes"]:
            name = f"cpu:harp,cuda:nccl on {device}"
            check(
                torch, task, size, name, partial(torch.distributed.all_reduce, group=group), device
            )


# -- NCCL without PyTorch


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Nccl:
    """A communicator of NCCL's own, beside PyTorch's."""

    def __init__(self, torch: Any, task: dict[str, Any], store: Any) -> None:
        # PyTorch has loaded the library, so its name suffices.
        self.nccl = ctypes.CDLL("libnccl.so.2")
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.torch = torch
        name, self.comm = UniqueId(), ctypes.c_void_p()
        if task["rank"] == 0:
            self.must("ncclGetUniqueId", self.nccl.ncclGetUniqueId(ctypes.byref(name)))
            store.set("nccl id", bytes(name).hex())
        name = UniqueId.from_buffer_copy(bytes.fromhex(store.get("nccl id").decode()))
        result = self.nccl.ncclCommInitRank(
            ctypes.byref(self.comm), task["ranks"], name, task["rank"]
        )
        self.must("ncclCommInitRank", result)

    def must(self, call: str, result: int) -> None:
        if result:
            raise RuntimeError(f"{call}: {self.nccl.ncclGetErrorString(result).decode()}")

    def all_reduce(self, data: Any) -> None:
        kind = FLOAT32 if data.dtype == self.torch.float32 else INT32
        at = ctypes.c_void_p(data.data_ptr())
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        count = ctypes.c_size_t(data.numel())
        self.must(
            "ncclAllReduce",
            self.nccl.ncclAllReduce(at, at, count, kind, SUM, self.comm, stream),
        )

    def close(self) -> None:
        self.torch.cuda.synchronize()
        self.must("ncclCommDestroy", self.nccl.ncclCommDestroy(self.comm))


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    say(
        "versions",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        nccl=".".join(map(str, torch.cuda.nccl.version())),
        gpu=torch.cuda.get_device_name(0),
    )
    limit = timedelta(seconds=task["limit_s"])
    store = dist.TCPStore(task["host"], task["port"], task["ranks"], task["rank"] == 0, limit)
    dist.init_process_group(
        "nccl", store=store, rank=task["rank"], world_size=task["ranks"], timeout=limit
    )
    run_all(torch, task, "torch", dist.all_reduce)
    nccl = Nccl(torch, task, store)
    run_all(torch, task, "nccl", nccl.all_reduce)
    nccl.close()
    if os.environ.get("NCCL_NET") != "Socket":  # which makes HARP decline
        check_devices(torch, task)
    for reduction in REDUCTIONS:
        train(torch, task, reduction, say)
    dist.barrier()
    dist.destroy_process_group()
    say("done")


if __name__ == "__main__":
    main()
