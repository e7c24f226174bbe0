# SPDX-License-Identifier: Apache-2.0
"""Every collective with the backend harp and with Gloo: the results must be the same.

Usage: conformance.py short|full. Exit: 0 all equal, 1 some differ (printed).
"""

from __future__ import annotations

import sys
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import harp.torch  # noqa: F401

Tensor = torch.Tensor

FULL = sys.argv[1:] == ["full"]
COUNTS = [0, 1, 5000, 50_001] + ([63, 400_000, 1_048_576] if FULL else [])
LARGEST = 16_777_216  # 64 MiB of float32, in the long form
GROUPS = [2, 3, 4]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
HALVES = [torch.float16, torch.bfloat16]
FLOATS = [torch.float32, torch.float64]
COMPLEX = [torch.complex64]
ALL = [*INTEGERS, *HALVES, *FLOATS, *COMPLEX, torch.bool]
SOME = [torch.int64, torch.float32, torch.bfloat16]
# Movements do not look at the elements: their size is enough.
MOVED = [torch.uint8, torch.float32]
if FULL:
    MOVED += [torch.int8, torch.int32, torch.int64, torch.float64, torch.float16]

rank = 0
wrong: list[str] = []
compared = 0


def make(dtype: torch.dtype, count: int, seed: int) -> Tensor:
    """Elements whose sums and products stay in the range of each type."""
    generator = torch.Generator().manual_seed(seed * 1000 + count)
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    if dtype.is_complex:
        return torch.randn(count, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(0, 4, (count,), generator=generator).to(dtype)


def wide(tensor: Tensor) -> Tensor:
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64 if tensor.dtype.is_floating_point else torch.int64)


def near(mine: Tensor, right: Tensor, dtype: torch.dtype) -> bool:
    """Equal, or within rounding. `right` may be wider than `mine`."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.equal(mine.to(right.dtype), right)
    # Sums of floats depend on the order. A sum of 16-bit floats is rounded once, at the end.
    tolerance = 1e-5 if dtype in (torch.float32, torch.complex64) else torch.finfo(dtype).eps
    return torch.allclose(wide(mine), wide(right), rtol=tolerance, atol=1e-5)


def check(what: str, mine: list[Tensor], right: list[Tensor], dtype: torch.dtype) -> None:
    global compared
    compared += 1
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


def fold(op: str, inputs: list[Tensor]) -> Tensor:
    """The exact result, from the inputs that Gloo gathered."""
    dtype, stack = inputs[0].dtype, torch.stack([wide(one) for one in inputs])
    if dtype == torch.bool:
        any_of, all_of = stack.sum(0) > 0, stack.prod(0) > 0
        odd = stack.sum(0) % 2 == 1
        bools = {"product": all_of, "min": all_of, "band": all_of, "bxor": odd}
        return bools.get(op, any_of)
    if op in ("band", "bor", "bxor"):
        folds = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
        result = stack[0]
        for one in stack[1:]:
            result = folds[op](result, one)
        return result
    if op == "avg":
        total = stack.sum(0)
        exact = dtype.is_floating_point or dtype.is_complex
        return total / len(inputs) if exact else total.div(len(inputs), rounding_mode="trunc")
    plain: dict[str, Callable[[], Tensor]] = {
        "sum": lambda: stack.sum(0),
        "product": lambda: stack.prod(0),
        "min": lambda: stack.amin(0),
        "max": lambda: stack.amax(0),
    }
    return plain[op]()


def gathered(mine: Tensor, gloo: Any, size: int) -> list[Tensor]:
    """All ranks' tensors, as bytes: Gloo lacks some types."""
    out = [torch.empty_like(mine) for _ in range(size)]
    if mine.numel():
        raw = [one.view(torch.uint8) for one in out]
        dist.all_gather(raw, mine.view(torch.uint8), group=gloo)
    return out


def by_gloo(run: Callable[[Any], list[Tensor]], gloo: Any, exact: list[Tensor]) -> list[Tensor]:
    """What Gloo computes; the exact result for what Gloo lacks, and for the 16-bit floats, which
    Gloo rounds after each addition."""
    if exact and exact[0].numel() == 0:
        return exact
    try:
        return run(gloo)
    except (RuntimeError, ValueError):
        return exact


def reductions(me: int, size: int, gloo: Any, harp_group: Any, dtype: torch.dtype, n: int) -> None:
    mine = make(dtype, n, me)
    inputs = gathered(mine, gloo, size)
    for op, torch_op in OPERATIONS.items():
        if not defined(op, dtype):
            continue
        name = f"{op} of {n} {dtype}, {size} ranks"
        right = fold(op, inputs)

        def all_reduce(group: Any) -> list[Tensor]:
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

    # A rank's part of each rank's input.
    many = make(dtype, n * size, me)
    inputs = [one.view(size, n)[me] for one in gathered(many, gloo, size)]
    for op in ("sum", "max") if defined("max", dtype) else ("sum",):
        out = torch.empty(n, dtype=dtype)
        right = fold(op, inputs)
        dist.reduce_scatter_tensor(out, many, OPERATIONS[op], group=harp_group)
        check(f"reduce_scatter_tensor {op} of {n} {dtype}, {size}", [out], [right], dtype)
        out = torch.empty(n, dtype=dtype)
        parts = list(many.view(size, n).clone().unbind())
        dist.reduce_scatter(out, parts, OPERATIONS[op], group=harp_group)
        check(f"reduce_scatter {op} of {n} {dtype}, {size}", [out], [right], dtype)


def movements(me: int, size: int, gloo: Any, harp_group: Any, dtype: torch.dtype, n: int) -> None:
    mine, many = make(dtype, n, me), make(dtype, n * size, me + 50)

    def to_global(place: int) -> int:
        return dist.get_global_rank(harp_group, place)

    def broadcast(group: Any) -> list[Tensor]:
        out = mine.clone()
        dist.broadcast(out, to_global(1), group=group)
        return [out]

    def all_gather(group: Any) -> list[Tensor]:
        out = [torch.zeros_like(mine) for _ in range(size)]
        dist.all_gather(out, mine, group=group)
        return out

    def all_gather_into_tensor(group: Any) -> list[Tensor]:
        out = torch.zeros(n * size, dtype=dtype)
        dist.all_gather_into_tensor(out, mine, group=group)
        return [out]

    def gather(group: Any) -> list[Tensor]:
        out = [torch.zeros_like(mine) for _ in range(size)] if me == size - 1 else None
        dist.gather(mine, out, to_global(size - 1), group=group)
        return out or []

    def scatter(group: Any) -> list[Tensor]:
        out = torch.zeros_like(mine)
        parts = list(many.view(size, n).clone().unbind()) if me == 0 else None
        dist.scatter(out, parts, to_global(0), group=group)
        return [out]

    def all_to_all_single(group: Any) -> list[Tensor]:
        out = torch.zeros_like(many)
        dist.all_to_all_single(out, many, group=group)
        return [out]

    def uneven(group: Any) -> list[Tensor]:
        """Rank a sends (a + 2 b) % 3 parts of n / 3 elements to rank b, and maybe none."""
        sent = [(me + 2 * to) % 3 * (n // 3) for to in range(size)]
        received = [(source + 2 * me) % 3 * (n // 3) for source in range(size)]
        out = torch.zeros(sum(received), dtype=dtype)
        dist.all_to_all_single(out, make(dtype, sum(sent), me), received, sent, group=group)
        return [out]

    def neighbours(group: Any) -> list[Tensor]:
        """A message around the ring, by isend and irecv at once."""
        out = torch.zeros_like(mine)
        receive = dist.irecv(out, to_global((me - 1) % size), group=group, tag=3)
        send = dist.isend(mine, to_global((me + 1) % size), group=group, tag=3)
        send.wait()
        receive.wait()
        return [out]

    runs = [broadcast, all_gather, all_gather_into_tensor, gather, scatter, all_to_all_single]
    for run in [*runs, uneven, neighbours]:
        name = f"{run.__name__} of {n} {dtype}, {size} ranks"
        mine_out = run(harp_group)
        if n == 0:
            continue  # the harp group must take it; Gloo does not take all of them
        check(name, mine_out, run(gloo), dtype)

    # Gloo has no all_to_all of lists; all_to_all_single is the same movement.
    out = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_to_all(out, list(many.view(size, n).clone().unbind()), group=harp_group)
    if n:
        check(f"all_to_all of {n} {dtype}", [torch.cat(out)], all_to_all_single(gloo), dtype)


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


def main() -> int:
    global rank
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for size in GROUPS:
        members = list(range(size))
        gloo = dist.new_group(members, backend="gloo")
        harp_group = dist.new_group(members, backend="harp")
        if rank not in members:
            continue
        for count in COUNTS:
            for dtype in ALL if FULL or count == 5000 else SOME:
                reductions(rank, size, gloo, harp_group, dtype, count)
            for dtype in MOVED:
                movements(rank, size, gloo, harp_group, dtype, count)
        if FULL:
            reductions(rank, size, gloo, harp_group, torch.float32, LARGEST)
            movements(rank, size, gloo, harp_group, torch.float32, LARGEST // size)
        special(rank, size, harp_group)
        premultiplied(rank, size, harp_group)
        futures(rank, size, harp_group)
        dist.barrier(group=harp_group)
    dist.barrier()
    dist.destroy_process_group()
    for line in wrong[:20]:
        print("wrong:", line)
    print(f"rank {rank}: {compared} results compared, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
