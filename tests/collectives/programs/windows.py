# SPDX-License-Identifier: Apache-2.0
"""Collectives of ranks that share memory. Prints a line of JSON with what the ranks of each scene
told.

Usage: windows.py LIBRARY PLUGIN
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Callable

import numpy as np
from c_library import error, library
from host_ranks import (
    ALL_GATHER,
    ALL_TO_ALL,
    AVERAGE,
    BAND,
    BARRIER,
    BOR,
    BROADCAST,
    BXOR,
    DTYPES,
    GATHER,
    MAX,
    MIN,
    NAMES,
    PRODUCT,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    SUM,
    Group,
    hosts,
    play,
)

ALL_COUNT = 5000  # elements with all reductions
COUNTS = [0, 1, ALL_COUNT, 300_001]
LIMIT_MS = 1500  # of an operation that cannot end; all but one rank must have begun it by then
NUMPY_TYPES = [dtype for dtype in DTYPES if dtype != "bfloat16"]  # numpy lacks it


def operand(dtype: str, count: int, rank: int) -> Any:
    """Elements whose sums and products stay in the range of each type, and are exact in floats."""
    numbers = np.random.default_rng(1000 * count + rank).integers(0, 4, count)
    return (numbers % 2 if dtype == "bool" else numbers).astype(dtype)


def expected(reduction: int, operands: list[Any]) -> Any:
    dtype = operands[0].dtype
    folds: dict[int, Callable[[Any, Any], Any]] = {
        SUM: np.logical_or if dtype.kind == "b" else np.add,
        PRODUCT: np.multiply,
        MIN: np.minimum,
        MAX: np.maximum,
        BAND: np.bitwise_and,
        BOR: np.bitwise_or,
        BXOR: np.bitwise_xor,
        AVERAGE: np.add,
    }
    result = operands[0].copy()
    for one in operands[1:]:
        result = folds[reduction](result, one)
    if reduction == AVERAGE:
        result = result / len(operands) if dtype.kind == "f" else result // len(operands)
    return result.astype(dtype)


def reductions_of(dtype: str) -> list[int]:
    if dtype == "bool":
        return [SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR]
    if dtype.startswith("float"):
        return [SUM, PRODUCT, MIN, MAX, AVERAGE]
    return list(range(8))


def cases(dtypes: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Types, counts and reductions: all reductions with one of the counts."""
    for dtype in dtypes:
        for count in COUNTS:
            for reduction in reductions_of(dtype) if count == ALL_COUNT else [SUM]:
                yield dtype, count, reduction


def results(rank: Group, dtypes: Sequence[str] = ("float32", "float16")) -> dict[str, Any]:
    """Sums of several sizes. `bits` is equal for ranks with equal results."""
    shares, wrong = rank.share(), []
    for dtype, count, reduction in cases(dtypes):
        operands = [operand(dtype, count, each) for each in range(rank.ranks)]
        array = operands[rank.number].copy()
        state = rank.all_reduce(array, reduction)
        if state != 1 or not np.array_equal(array, expected(reduction, operands)):
            wrong.append(f"{dtype} {count} {reduction}: {error.value.decode()}")
    floats = np.random.default_rng(rank.number).standard_normal(300_001).astype(np.float32)
    rank.all_reduce(floats, AVERAGE)
    return {"shares": shares, "wrong": wrong, "bits": hashlib.sha256(floats).hexdigest()}


# -- the other collectives


def reduce_all(rank: Group, dtypes: Sequence[str]) -> Iterator[str]:
    """Reduces to a root, and scatters sums. Yields what is wrong."""
    for number, (dtype, count, reduction) in enumerate(cases(dtypes)):
        if count > ALL_COUNT and not dtype.startswith("float"):
            continue  # the other types are as long in memory as these
        root = number % rank.ranks
        operands = [operand(dtype, count, each) for each in range(rank.ranks)]
        array = operands[rank.number].copy()
        state = rank.call(REDUCE, (), (array,), reduction=reduction, root=root)
        right = expected(reduction, operands) if rank.number == root else operands[rank.number]
        if state != 1 or not np.array_equal(array, right):
            yield f"reduce {dtype} {count} {reduction}: {error.value.decode()}"
        # The part of each rank has another size, and the output may be the rank's own input.
        sizes = [count + 7 * each for each in range(rank.ranks)]
        inputs = [[operand(dtype, size, each + 10 * part) for part, size in enumerate(sizes)]
                  for each in range(rank.ranks)]  # fmt: skip
        read = inputs[rank.number]
        right = expected(reduction, [one[rank.number] for one in inputs])
        array = read[rank.number] if number % 2 else np.zeros_like(right)
        state = rank.call(REDUCE_SCATTER, read, (array,), reduction=reduction)
        if state != 1 or not np.array_equal(array, right):
            yield f"reduce_scatter {dtype} {count} {reduction}: {error.value.decode()}"


def move_all(rank: Group) -> Iterator[str]:
    """Moves parts of different sizes. Yields what is wrong."""
    own = rank.number
    for number, count in enumerate([0, 1, 5000, 200_003, 700_001]):
        root = number % rank.ranks
        # rows[a][b]: what rank a has for rank b
        rows = [[operand("int32", count * ((a + 2 * b) % 3) // 2, a + 10 * b)
                 for b in range(rank.ranks)] for a in range(rank.ranks)]  # fmt: skip
        gathered = [row[0] for row in rows]
        scattered = rows[root]
        moves: list[tuple[int, Any, Any, Any]] = [
            (BROADCAST, [], [rows[own][0] if own == root else np.zeros_like(rows[root][0])],
             [rows[root][0]]),
            (ALL_GATHER, [rows[own][0]], [np.zeros_like(one) for one in gathered], gathered),
            (ALL_TO_ALL, rows[own], [np.zeros_like(row[own]) for row in rows],
             [row[own] for row in rows]),
            (GATHER, [rows[own][0]], [np.zeros_like(one) for one in gathered] * (own == root),
             gathered * (own == root)),
            (SCATTER, scattered * (own == root), [np.zeros_like(scattered[own])],
             [scattered[own]]),
        ]  # fmt: skip
        in_place = [rows[own][0] if each == own else np.zeros_like(one)
                    for each, one in enumerate(gathered)]  # fmt: skip
        moves.append((ALL_GATHER, [rows[own][0]], in_place, gathered))
        for kind, read, written, right in moves:
            state = rank.call(kind, read, written, root=root)
            equal = all(np.array_equal(one, other) for one, other in zip(written, right))
            if state != 1 or not equal:
                yield f"{NAMES[kind]} {count}: {error.value.decode()}"


def collectives(rank: Group, dtypes: Sequence[str]) -> dict[str, Any]:
    shares = rank.share()
    wrong = [*reduce_all(rank, dtypes), *move_all(rank)]
    return {"shares": shares, "wrong": wrong, "bits": ""}


def two_groups(rank: Group) -> dict[str, Any]:
    """Many operations of two groups under way at once, which end in the other order."""
    groups = [rank, Group(rank.number, rank.ranks, rank.pipe)]
    shares = [group.share() for group in groups]
    posted = []
    for number in range(12):
        group, kind = groups[number % 2], (ALL_GATHER, BROADCAST, REDUCE_SCATTER)[number % 3]
        root, part = number % rank.ranks, np.full(40_000, rank.number + number)
        whole = [part + each for each in range(rank.ranks)]
        ranks = range(rank.ranks)
        read, written, right = {
            ALL_GATHER: ([part], whole, [number + each for each in ranks]),
            BROADCAST: ([], [part], [number + root]),
            REDUCE_SCATTER: (whole, [part], [sum(number + each + rank.number for each in ranks)]),
        }[kind]
        op = group.post(kind, read, written, root=root, waits=0)
        posted.append((group, op, read, written, right))
    wrong = []
    for number, (group, op, _, written, right) in reversed(list(enumerate(posted))):
        state = group.end(op)
        if state != 1 or any((one != value).any() for one, value in zip(written, right)):
            wrong.append(f"operation {number}: {error.value.decode()}")
    groups[1].leave()
    return {"shares": min(shares), "wrong": wrong, "bits": ""}


# -- faults


def call_once(rank: Group, kind: int, elements: int = 200_000) -> int:
    """A call of this kind whose root is rank 0. The state at the end."""
    whole = [np.ones(elements, dtype=np.float32) for _ in range(rank.ranks)]
    others = [np.ones_like(one) for one in whole]
    is_root = rank.number == 0
    arguments: dict[int, tuple[Any, Any]] = {
        ALL_GATHER: (whole[:1], others),
        REDUCE_SCATTER: (whole, others[:1]),
        ALL_TO_ALL: (whole, others),
        GATHER: (whole[:1], others * is_root),
        SCATTER: (whole * is_root, others[:1]),
        BARRIER: ((), ()),
    }
    read, written = arguments.get(kind, ((), whole[:1]))
    return rank.call(kind, read, written, reduction=MAX)


def call_until_failure(rank: Group, kind: int) -> str:
    """The sentence of the failure."""
    while call_once(rank, kind) == 1:
        pass
    return str(error.value.decode())


def killed(rank: Group, kind: int, child: bool = True) -> dict[str, Any]:
    """The last rank is killed. A child of it, which has its descriptors, lives on."""
    shares = rank.share()
    if rank.number == rank.ranks - 1:
        for _ in range(3):
            call_once(rank, kind)
        if child and os.fork() == 0:
            rank.pipe.recv(1)  # until the parent ends this scene
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    return {"shares": shares, "text": call_until_failure(rank, kind)}


def aborted(rank: Group, kind: int) -> dict[str, Any]:
    shares = rank.share()
    if rank.number == 0:
        call_once(rank, kind)
        library.harp_group_abort(rank.group, b"rank 0 gave up")
    return {"shares": shares, "text": call_until_failure(rank, kind)}


def absent(rank: Group) -> dict[str, Any]:
    """The last rank does not come before the others have given up."""
    shares = rank.share()
    array, late = np.ones(10, dtype=np.float32), rank.number == rank.ranks - 1
    if late:
        rank.rendezvous()
    while rank.all_reduce(array, MAX, LIMIT_MS) == 1:
        assert late
    text = error.value.decode()
    if not late:
        rank.rendezvous()
    return {"shares": shares, "text": text}


def other_call(rank: Group, kinds: tuple[int, int], elements: tuple[int, int]) -> dict[str, Any]:
    """The last rank calls another kind, or with another size."""
    shares, last = rank.share(), rank.number == rank.ranks - 1
    state = call_once(rank, kinds[last], elements[last])
    return {"shares": shares, "text": error.value.decode() if state < 0 else "no failure"}


def exchanged_sizes(rank: Group) -> dict[str, Any]:
    """The last rank takes the sizes of ranks 0 and 1 for each other's. Their sum is right."""
    shares, sizes = rank.share(), [100, 101, 102, 103]
    own = sizes[rank.number]
    if rank.number == rank.ranks - 1:
        sizes[0], sizes[1] = sizes[1], sizes[0]
    outputs = [np.zeros(size, dtype=np.uint8) for size in sizes]
    state = rank.call(ALL_GATHER, (np.zeros(own, dtype=np.uint8),), outputs)
    return {"shares": shares, "text": error.value.decode() if state < 0 else "no failure"}


def main() -> None:
    kinds = range(len(NAMES))
    across, two = (BROADCAST, ALL_GATHER, REDUCE_SCATTER), hosts("a", "b", "a", "b")
    print(json.dumps({
        "2": play(results, 2, {}),
        "3": play(partial(results, dtypes=NUMPY_TYPES), 3, {}),
        "8": play(results, 8, {}),
        "2+2": play(partial(results, dtypes=NUMPY_TYPES), 4, hosts("a", "a", "b", "b")),
        "2+2+2": play(results, 6, hosts("a", "b", "c", "a", "b", "c")),
        "all of 2": play(partial(collectives, dtypes=["float16"]), 2, {}),
        "all of 3": play(partial(collectives, dtypes=NUMPY_TYPES), 3, {}),
        "all of 2+2": play(partial(collectives, dtypes=["float16", "int32"]), 4, two),
        "two groups": play(two_groups, 3, {}, meetings=2),
        "3+1": play(results, 4, hosts("a", "a", "a", "b")),
        "off": play(results, 3, {1: {"HARP_SHARED_MEMORY": "0"}}),
        "blind": play(results, 3, {1: {"BLIND": "1"}}),
        "killed": {NAMES[kind]: play(partial(killed, kind=kind), 3, {}) for kind in kinds},
        "killed across hosts": {
            NAMES[kind]: play(partial(killed, kind=kind, child=False), 4, two) for kind in across
        },
        "aborted": {NAMES[kind]: play(partial(aborted, kind=kind), 3, {}) for kind in kinds},
        "absent": play(absent, 3, {}, meetings=2),
        "other kind": play(partial(other_call, kinds=(ALL_GATHER, ALL_TO_ALL),
                                   elements=(100, 100)), 3, {}),
        "other size": {
            NAMES[kind]: play(partial(other_call, kinds=(kind, kind), elements=(100, 101)), 3, {})
            for kind in kinds if kind != BARRIER
        },
        "exchanged sizes": play(exchanged_sizes, 4, two),
        "other size across hosts": {
            NAMES[kind]: play(partial(other_call, kinds=(kind, kind), elements=(100, 101)), 4, two)
            for kind in across
        },
    }))  # fmt: skip


main()
