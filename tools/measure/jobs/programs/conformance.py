# SPDX-License-Identifier: Apache-2.0
"""Every collective with the backend harp and with Gloo: the results must be the same.

Usage: conformance.py FORM GROUP... FORM: short, full, or spoiled, a short one in which a result of
harp is changed. GROUP: the number of ranks of a group. Rank 0 prints {"group": N, "compared": its
results, "wrong": descriptions}, with the wrong results of all ranks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import harp.torch  # noqa: F401

FORM = sys.argv[1]
GROUPS = [int(word) for word in sys.argv[2:]]
FULL = FORM == "full"
COUNTS = [0, 1, 5000, 50_001] + ([63, 400_003, 1_048_583] if FULL else [])  # elements
LARGEST = (1 << 26) - 3  # bytes, in the long form
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
HALVES = [torch.float16, torch.bfloat16]
FLOATS = [torch.float32, torch.float64]
COMPLEX = [torch.complex64]
ALL = [*INTEGERS, *HALVES, *FLOATS, *COMPLEX, torch.bool]
SOME = [torch.int64, torch.float32, torch.bfloat16]
# Movements do not look at the elements: in the short form, their size is enough.
MOVED = ALL if FULL else [torch.uint8, torch.float32]

rank = 0
wrong: list[str] = []
compared = 0
to_spoil = FORM == "spoiled"


def make(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Elements whose sums stay in the range of each type."""
    generator = torch.Generator().manual_seed(seed * 1000 + count)
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    if dtype.is_complex:
        return torch.randn(count, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(0, 4, (count,), generator=generator).to(dtype)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64 if tensor.dtype.is_floating_point else torch.int64)


def near(mine: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> bool:
    """Equal, or within rounding. `right` may be wider than `mine`."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.equal(mine, right.to(dtype))  # products of many ranks wrap
    # Sums of floats depend on the order. A sum of 16-bit floats is rounded once, at the end.
    tolerance = 1e-5 if dtype in (torch.float32, torch.complex64) else torch.finfo(dtype).eps
    return torch.allclose(wide(mine), wide(right), rtol=tolerance, atol=1e-5)


def check(
    what: str, mine: list[torch.Tensor], right: list[torch.Tensor], dtype: torch.dtype
) -> None:
    global compared, to_spoil
    compared += 1
    if to_spoil and mine[0].numel():
        to_spoil = False
        mine[0].view(-1)[0] += 1
    if len(mine) != len(right) or not all(near(a, b, dtype) for a, b in zip(mine, right)):
        wrong.append(what)


OPERATIONS: dict[str, Any] = {
    "sum": ReduceOp.SUM, "product": ReduceOp.PRODUCT, "min": ReduceOp.MIN, "max": ReduceOp.MAX,
    "avg": ReduceOp.AVG, "band": ReduceOp.BAND, "bor": ReduceOp.BOR, "bxor": ReduceOp.BXOR,
}  # fmt: skip


def defined(op: str, dtype: torch.dtype) -> bool:
    if dtype.is_complex:
        return op in ("sum", "avg")
    if dtype == torch.bool:
        return op != "avg"
    return not (dtype.is_floating_point and op.startswith("b"))


FOLDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add, "avg": torch.add, "product": torch.mul, "min": torch.minimum,
    "max": torch.maximum, "band": torch.bitwise_and, "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}  # fmt: skip
LOGICAL = {"sum": "bor", "product": "band", "min": "band", "max": "bor"}  # of bool


def fold(op: str, inputs: Iterable[torch.Tensor], size: int) -> torch.Tensor:
    """The exact result of an operation on the inputs of `size` ranks."""

    def operand(one: torch.Tensor) -> torch.Tensor:
        return one if one.dtype == torch.bool else wide(one)

    result: Optional[torch.Tensor] = None
    for one in inputs:
        name = LOGICAL.get(op, op) if one.dtype == torch.bool else op
        result = operand(one) if result is None else FOLDS[name](result, operand(one))
    assert result is not None
    if op != "avg":
        return result
    exact = result.is_floating_point() or result.is_complex()
    return result / size if exact else result.div(size, rounding_mode="trunc")


def by_gloo(
    run: Callable[[Any], list[torch.Tensor]], gloo: Any, exact: list[torch.Tensor]
) -> list[torch.Tensor]:
    """What Gloo computes; the exact result for what Gloo lacks, and for the 16-bit floats, which
    Gloo rounds after each addition."""
    if exact and exact[0].numel() == 0:
        return exact
    try:
        return run(gloo)
    except (RuntimeError, ValueError):
        return exact


def reductions(
    me: int, size: int, gloo: Any, harp_group: Any, dtype: torch.dtype, n: int,
    operations: Iterable[str] = tuple(OPERATIONS),
) -> None:  # fmt: skip
    mine = make(dtype, n, me)
    for op in operations:
        torch_op = OPERATIONS[op]
        if not defined(op, dtype):
            continue
        name = f"{op} of {n} {dtype}, {size} ranks"
        right = fold(op, (make(dtype, n, seed) for seed in range(size)), size)

        def all_reduce(group: Any) -> list[torch.Tensor]:
            out = mine.clone()
            dist.all_reduce(out, torch_op, group=group)
            return [out]

        reference = [right]
        if dtype not in HALVES and dtype != torch.bool:
            reference = by_gloo(all_reduce, gloo, [right])
        check(f"all_reduce {name}", all_reduce(harp_group), reference, dtype)

        root = size - 1
        out = mine.clone()
        dist.reduce(out, dist.get_global_rank(harp_group, root), torch_op, group=harp_group)
        check(f"reduce {name}", [out], [right if me == root else mine], dtype)

    # A rank's part of each rank's input, which has at most LARGEST bytes: ranks share a machine.
    n = min(n, LARGEST // dtype.itemsize // size)
    many = make(dtype, n * size, me)
    for op in ("sum", "max"):
        if op not in operations or not defined(op, dtype):
            continue
        out = torch.empty(n, dtype=dtype)
        inputs = (make(dtype, n * size, seed).view(size, n)[me] for seed in range(size))
        right = fold(op, inputs, size)
        dist.reduce_scatter_tensor(out, many, OPERATIONS[op], group=harp_group)
        check(f"reduce_scatter_tensor {op} of {n} {dtype}, {size}", [out], [right], dtype)
        out = torch.empty(n, dtype=dtype)
        parts = list(many.view(size, n).clone().unbind())
        dist.reduce_scatter(out, parts, OPERATIONS[op], group=harp_group)
        check(f"reduce_scatter {op} of {n} {dtype}, {size}", [out], [right], dtype)


class Movements:
    """Each movement in a group: of `n` elements, or of their bytes."""

    def __init__(self, me: int, group: Any, dtype: torch.dtype, n: int, by_bytes: bool) -> None:
        self.me, self.group, self.size = me, group, dist.get_world_size(group)
        self.mine, self.many = make(dtype, n, me), make(dtype, n * self.size, me + 50)
        # Rank a sends (a + 2 b) % 3 thirds to rank b, and maybe none.
        self.sent = [(me + 2 * to) % 3 * (n // 3) for to in range(self.size)]
        self.received = [(source + 2 * me) % 3 * (n // 3) for source in range(self.size)]
        self.thirds = make(dtype, sum(self.sent), me)
        if by_bytes:
            self.mine, self.many = self.mine.view(torch.uint8), self.many.view(torch.uint8)
            self.thirds = self.thirds.view(torch.uint8)
            self.sent = [dtype.itemsize * one for one in self.sent]
            self.received = [dtype.itemsize * one for one in self.received]

    def to_global(self, place: int) -> int:
        return dist.get_global_rank(self.group, place % self.size)

    def parts(self) -> list[torch.Tensor]:
        return list(self.many.view(self.size, self.mine.numel()).clone().unbind())

    def broadcast(self) -> list[torch.Tensor]:
        out = self.mine.clone()
        dist.broadcast(out, self.to_global(1), group=self.group)
        return [out]

    def all_gather(self) -> list[torch.Tensor]:
        out = [torch.zeros_like(self.mine) for _ in range(self.size)]
        dist.all_gather(out, self.mine, group=self.group)
        return out

    def all_gather_into_tensor(self) -> list[torch.Tensor]:
        out = torch.zeros_like(self.many)
        dist.all_gather_into_tensor(out, self.mine, group=self.group)
        return [out]

    def gather(self) -> list[torch.Tensor]:
        root = self.size - 1
        out = [torch.zeros_like(self.mine) for _ in range(self.size)] if self.me == root else None
        dist.gather(self.mine, out, self.to_global(root), group=self.group)
        return out or []

    def scatter(self) -> list[torch.Tensor]:
        out = torch.zeros_like(self.mine)
        parts = self.parts() if self.me == 0 else None
        dist.scatter(out, parts, self.to_global(0), group=self.group)
        return [out]

    def all_to_all_single(self) -> list[torch.Tensor]:
        out = torch.zeros_like(self.many)
        dist.all_to_all_single(out, self.many, group=self.group)
        return [out]

    def uneven(self) -> list[torch.Tensor]:
        out = torch.zeros(sum(self.received), dtype=self.mine.dtype)
        dist.all_to_all_single(out, self.thirds, self.received, self.sent, group=self.group)
        return [out]

    def neighbours(self) -> list[torch.Tensor]:
        """A message around the ring, by isend and irecv at once."""
        out = torch.zeros_like(self.mine)
        receive = dist.irecv(out, self.to_global(self.me - 1), group=self.group, tag=3)
        send = dist.isend(self.mine, self.to_global(self.me + 1), group=self.group, tag=3)
        send.wait()
        receive.wait()
        return [out]

    def all_to_all(self) -> list[torch.Tensor]:
        out = [torch.zeros_like(self.mine) for _ in range(self.size)]
        dist.all_to_all(out, self.parts(), group=self.group)
        return [torch.cat(out)]


# Gloo's own of all_to_all: it has none of lists.
MOVEMENTS = {
    **{name: name for name in ("broadcast", "all_gather", "all_gather_into_tensor", "gather",
                               "scatter", "all_to_all_single", "uneven", "neighbours")},
    "all_to_all": "all_to_all_single",
}  # fmt: skip


def movements(me: int, size: int, gloo: Any, harp_group: Any, dtype: torch.dtype, n: int) -> None:
    """Compares bytes: Gloo lacks some types, and moves no empty tensors in some operations."""
    mine = Movements(me, harp_group, dtype, n, by_bytes=False)
    right = Movements(me, gloo, dtype, n, by_bytes=True)
    for name, gloos in MOVEMENTS.items():
        moved = [one.view(torch.uint8) for one in getattr(mine, name)()]
        if n > 0:
            expected = getattr(right, gloos)()
            check(f"{name} of {n} {dtype}, {size} ranks", moved, expected, torch.uint8)


def special(me: int, size: int, harp_group: Any) -> None:
    """Objects, coalesced forms, other orders of dimensions, tags out of order, any source."""
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": me}, group=harp_group)
    if objects != [{"rank": one} for one in range(size)]:
        wrong.append(f"all_gather_object: {objects}")

    with dist._coalescing_manager(group=harp_group, async_ops=True) as manager:
        several = [torch.full((count,), float(me)) for count in (3, 20_000)]
        for tensor in several:
            dist.all_reduce(tensor, group=harp_group)
    manager.wait()
    total = float(sum(range(size)))
    if any((tensor != total).any() for tensor in several):
        wrong.append("coalesced all_reduce")

    image = torch.full((2, 3, 4, 5), float(me)).to(memory_format=torch.channels_last)
    dist.all_reduce(image, group=harp_group)
    if (image != total).any():
        wrong.append("all_reduce of channels_last")

    peers = [dist.get_global_rank(harp_group, place) for place in range(size)]
    if me == 0:
        for tag, count in ((1, 10), (2, 100_000), (3, 20)):
            dist.send(torch.full((count,), tag), peers[1], group=harp_group, tag=tag)
    if me == 1:
        for tag, count in ((3, 20), (2, 100_000), (1, 10)):
            got = torch.zeros(count, dtype=torch.int64)
            if dist.recv(got, peers[0], group=harp_group, tag=tag) != peers[0]:
                wrong.append("recv returns another rank")
            if (got != tag).any():
                wrong.append(f"tag {tag}")
    for tag in (-1, 1 << 31, 1 << 32):  # they must not wrap
        try:
            dist.send(torch.ones(1), peers[1 - min(me, 1)], group=harp_group, tag=tag)
            wrong.append(f"tag {tag} was accepted")
        except RuntimeError as error:
            if f"tag {tag} is not between 0 and 2147483647" not in str(error):
                wrong.append(f"tag {tag}: {error}")
    if me == 0:
        sources = set()
        for _ in range(size - 1):
            got = torch.zeros(1, dtype=torch.int64)
            sources.add(dist.recv(got, group=harp_group))
            if int(got) not in peers:
                wrong.append("recv of any source")
        if sources != set(peers[1:]):
            wrong.append(f"sources {sources}")
    else:
        dist.send(torch.tensor([rank]), peers[0], group=harp_group)


def premultiplied(me: int, size: int, harp_group: Any) -> None:
    """Each rank multiplies its operand by a factor of its own. Gloo has no such reduction."""
    make_op = getattr(dist, "_make_nccl_premul_sum", None)
    if make_op is None:  # this release of torch lacks it
        return
    total = sum(rank * (rank + 0.5) for rank in range(size))
    root = dist.get_global_rank(harp_group, size - 1)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
        for op in (make_op(me + 0.5), make_op(torch.tensor([me + 0.5]))):
            mine = torch.full((30_000,), me, dtype=dtype)
            dist.all_reduce(mine, op, group=harp_group)
            if (mine != total).any():
                wrong.append(f"premultiplied all_reduce of {dtype}")
            mine = torch.full((30_000,), me, dtype=dtype)
            dist.reduce(mine, root, op, group=harp_group)
            if (mine != (total if me == size - 1 else me)).any():
                wrong.append(f"premultiplied reduce of {dtype}")
            share, many = torch.zeros(70, dtype=dtype), torch.full((70 * size,), me, dtype=dtype)
            dist.reduce_scatter_tensor(share, many, op, group=harp_group)
            if (share != total).any() or (many != me).any():
                wrong.append(f"premultiplied reduce_scatter of {dtype}")
    try:
        dist.all_reduce(torch.ones(3, dtype=torch.int32), make_op(2.0), group=harp_group)
        wrong.append("PREMUL_SUM took integers")
    except RuntimeError as error:
        if "multiplies floats" not in str(error):
            wrong.append(f"PREMUL_SUM of integers: {error}")


def futures(me: int, size: int, harp_group: Any) -> None:
    """Several operations under way, whose futures and callbacks get the results."""
    total = float(sum(range(size)))
    works = []
    for count in (1, 100_000, 7):
        tensor = torch.full((count,), float(me))
        works.append(dist.all_reduce(tensor, group=harp_group, async_op=True))
    sums = [work.get_future().then(lambda one: float(one.value()[0].mean())) for work in works]
    if [one.wait() for one in sums] != [total] * 3:
        wrong.append("futures")
    if not all(work.is_completed() and work.is_success() for work in works):
        wrong.append("works are not complete")


def compare(size: int, gloo: Any, harp_group: Any) -> None:
    for count in COUNTS:
        for dtype in ALL if FULL or count == 5000 else SOME:
            reductions(rank, size, gloo, harp_group, dtype, count)
        for dtype in MOVED:
            movements(rank, size, gloo, harp_group, dtype, count)
    for dtype in ALL if FULL else []:
        largest = LARGEST // dtype.itemsize
        reductions(rank, size, gloo, harp_group, dtype, largest, ["sum"])
        movements(rank, size, gloo, harp_group, dtype, largest // size)
    special(rank, size, harp_group)
    premultiplied(rank, size, harp_group)
    futures(rank, size, harp_group)
    dist.barrier(group=harp_group)


def main() -> None:
    global rank, compared
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for size in GROUPS:
        members = list(range(size))
        gloo = dist.new_group(members, backend="gloo")
        harp_group = dist.new_group(members, backend="harp")
        compared = 0
        wrong.clear()
        if rank in members:
            compare(size, gloo, harp_group)
        of_all: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_all, wrong)
        if rank == 0:
            told = [f"rank {one}: {what}" for one in members for what in of_all[one]]
            print(json.dumps({"group": size, "compared": compared, "wrong": told}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
