# SPDX-License-Identifier: Apache-2.0
"""Groups with harp for CPU tensors and another backend for another device.

A tensor of the device "meta" has no memory, so it shows without a GPU which backend an operation
reaches: a backend of this program notes each call. Prints what is wrong. Exit: 0, or 1.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

import harp.torch

noted: list[str] = []
wrong: list[str] = []


class Done(dist.Work):  # type: ignore[misc]
    def wait(self, timeout: Any = None) -> bool:
        return True


class Noting(dist.ProcessGroup):  # type: ignore[misc]
    """A backend that notes the names of its operations."""

    def getBackendName(self) -> str:
        return "noting"

    def setGroupName(self, name: str) -> None:
        pass

    def getGroupName(self) -> str:
        return "noting"

    _set_group_name = setGroupName
    _set_group_desc = setGroupName
    group_name = property(getGroupName)


def noting(name: str) -> Any:
    def call(self: Noting, *arguments: Any, **named: Any) -> Done:
        noted.append(name)
        return Done()

    return call


CALLS = (
    "allreduce", "broadcast", "allgather", "reduce", "gather", "scatter", "alltoall", "send",
    "recv", "barrier",
)  # fmt: skip
for one in CALLS:
    setattr(Noting, one, noting(one))


def expect(right: bool, what: str) -> None:
    if not right:
        wrong.append(what)


def goes_by_device(group: Any, where: str) -> None:
    """CPU tensors are reduced by harp, and those of the other device reach its backend."""
    rank, size = dist.get_rank(), dist.get_world_size()
    noted.clear()
    for _ in range(2):
        numbers = torch.full((1000,), float(rank))
        dist.all_reduce(numbers, group=group)
        expect(bool((numbers == sum(range(size))).all()), f"{where}: sum")
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, rank, group=group)
    expect(objects == list(range(size)), f"{where}: objects")
    dist.barrier(group=group)
    expect(not noted, f"{where}: CPU tensors reached the other backend: {noted}")

    tensor = torch.empty(8, device="meta")
    many = [torch.empty(8, device="meta") for _ in range(size)]
    dist.all_reduce(tensor, group=group)
    dist.broadcast(tensor, 0, group=group)
    dist.all_gather(many, tensor, group=group)
    dist.reduce(tensor, 0, group=group)
    dist.gather(tensor, many if rank == 0 else None, 0, group=group)
    dist.scatter(tensor, many if rank == 0 else None, 0, group=group)
    dist.all_to_all(many, many, group=group)
    peer = 1 - rank
    dist.send(tensor, peer, group=group)
    dist.recv(tensor, peer, group=group)
    options = dist.BarrierOptions()
    options.device = torch.device("meta")
    group.barrier(options)
    expect(noted == list(CALLS), f"{where}: other tensors reached {noted}")


def main() -> int:
    dist.Backend.register_backend(
        "noting", lambda store, rank, size, timeout: Noting(rank, size), devices=["meta"]
    )
    dist.init_process_group("cpu:harp,meta:noting")
    default = dist.group.WORLD
    expect(isinstance(default, harp.torch.HarpProcessGroup), "the group is another one")
    # init_process_group asks for this if it gets a device_id.
    expect(not default._get_backend(torch.device("meta")).supports_splitting, "group splits")
    goes_by_device(default, "default group")
    goes_by_device(dist.new_group(backend="cpu:harp,meta:noting"), "new group")

    try:
        dist.all_reduce(torch.empty(8, device="meta"), group=dist.new_group(backend="harp"))
        wrong.append("a group without another backend took the tensor")
    except RuntimeError as error:
        expect("moves CPU tensors" in str(error), str(error))

    gloo = dist.new_group(backend="cuda:gloo,cpu:harp")
    other = gloo.others.group_for(gloo, torch.device("cuda"))
    backend = other._get_backend(torch.device("cuda"))
    expect(isinstance(backend, dist.ProcessGroupGloo), f"Gloo is {backend}")
    dist.barrier()
    rank = dist.get_rank()
    dist.destroy_process_group()
    print(f"rank {rank}: wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
