# SPDX-License-Identifier: Apache-2.0
"""All_reduce of ranks that share memory, by ctypes: each rank is a process. Prints a line of JSON
with what the ranks of each scene told.

Usage: windows.py LIBRARY PLUGIN
"""

from __future__ import annotations

import contextlib
import ctypes as c
import hashlib
import json
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import numpy as np
from c_library import HANDLE, NAME, Call, View, error, library

ALL_REDUCE = 0
DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32",
          "float64", "float16", "bfloat16", "bool"]  # fmt: skip
SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR, AVERAGE = range(8)
ALL_COUNT = 5000  # elements with all reductions
COUNTS = [0, 1, ALL_COUNT, 300_001]
WAIT_MS = 30_000
LIMIT_MS = 1500  # of an operation that cannot end; all but one rank must have begun it by then


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Rank:
    """A rank of a group whose processes exchange their handles by the parent."""

    def __init__(self, number: int, ranks: int, pipe: socket.socket) -> None:
        self.number, self.ranks, self.pipe = number, ranks, pipe
        assert library.harp_collectives_open(sys.argv[2].encode(), error) == 0, error.value
        handle = (c.c_char * HANDLE)()
        group = library.harp_group_create(number, ranks, 0, handle, error)
        assert group, error.value
        self.group = c.c_void_p(group)
        pipe.sendall(bytes(handle))
        handles = pipe.recv(ranks * HANDLE, socket.MSG_WAITALL)
        names = b"".join(b"host%d" % each + bytes(NAME - 5) for each in range(ranks))
        with no_descriptors() if "BLIND" in os.environ else contextlib.nullcontext():
            library.harp_group_start(self.group, handles, names, error)

    def share(self) -> int:
        return int(library.harp_group_share(self.group, c.c_int64(WAIT_MS), error))

    def all_reduce(self, array: Any, reduction: int, limit: int = WAIT_MS) -> int:
        """In place. The state at the end."""
        view = View(array.ctypes.data, array.nbytes)
        dtype = DTYPES.index(array.dtype.name)
        call = Call(ALL_REDUCE, dtype, reduction, 0, 0, 1, limit, None, c.pointer(view))
        op = library.harp_post(self.group, c.byref(call), error)
        if not op:
            return -1
        state = int(library.harp_op_wait(c.c_void_p(op), c.c_int64(0), 1, error))
        library.harp_op_free(c.c_void_p(op))
        return state

    def reduce_until_failure(self) -> str:
        """The sentence of the failure."""
        array = np.ones(200_000, dtype=np.float32)
        while self.all_reduce(array, MAX) == 1:
            pass
        return str(error.value.decode())

    def rendezvous(self) -> None:
        """Waits for the other ranks, beside HARP."""
        self.pipe.sendall(bytes(HANDLE))
        self.pipe.recv(self.ranks * HANDLE, socket.MSG_WAITALL)

    def leave(self) -> None:
        library.harp_group_destroy(self.group)


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


def results(rank: Rank, dtypes: Sequence[str] = ("float32", "float16")) -> dict[str, Any]:
    """Sums of several sizes. `bits` is equal for ranks with equal results."""
    shares, wrong = rank.share(), []
    for dtype in dtypes:
        for count in COUNTS:
            operands = [operand(dtype, count, each) for each in range(rank.ranks)]
            for reduction in reductions_of(dtype) if count == ALL_COUNT else [SUM]:
                array = operands[rank.number].copy()
                state = rank.all_reduce(array, reduction)
                if state != 1 or not np.array_equal(array, expected(reduction, operands)):
                    wrong.append(f"{dtype} {count} {reduction}: {error.value.decode()}")
    floats = np.random.default_rng(rank.number).standard_normal(300_001).astype(np.float32)
    rank.all_reduce(floats, AVERAGE)
    return {"shares": shares, "wrong": wrong, "bits": hashlib.sha256(floats).hexdigest()}


def all_types(rank: Rank) -> dict[str, Any]:
    """numpy lacks bfloat16."""
    return results(rank, [dtype for dtype in DTYPES if dtype != "bfloat16"])


def killed(rank: Rank) -> dict[str, Any]:
    """The last rank is killed. A child of it, which has its descriptors, lives on."""
    shares = rank.share()
    if rank.number == rank.ranks - 1:
        for _ in range(3):
            rank.all_reduce(np.ones(200_000, dtype=np.float32), MAX)
        if os.fork() == 0:
            rank.pipe.recv(1)  # until the parent ends this scene
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    return {"shares": shares, "text": rank.reduce_until_failure()}


def aborted(rank: Rank) -> dict[str, Any]:
    shares = rank.share()
    if rank.number == 0:
        rank.all_reduce(np.ones(10, dtype=np.float32), MAX)
        library.harp_group_abort(rank.group, b"rank 0 gave up")
    return {"shares": shares, "text": rank.reduce_until_failure()}


def absent(rank: Rank) -> dict[str, Any]:
    """The last rank does not come before the others have given up."""
    shares = rank.share()
    if rank.number == rank.ranks - 1:
        rank.rendezvous()
        return {"shares": shares, "text": rank.reduce_until_failure()}
    assert rank.all_reduce(np.ones(10, dtype=np.float32), SUM, LIMIT_MS) == -1
    text = error.value.decode()
    rank.rendezvous()
    return {"shares": shares, "text": text}


def run_rank(scene: Callable[[Rank], Any], number: int, ranks: int, pipe: socket.socket) -> None:
    c.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent
    rank = Rank(number, ranks, pipe)
    told = json.dumps(scene(rank)).encode()
    rank.leave()
    pipe.sendall(told)
    os._exit(0)


def play(scene: Callable[[Rank], Any], ranks: int, variables: dict[int, dict[str, str]],
         meetings: int = 1) -> list[Any]:  # fmt: skip
    """What each rank told; None of a killed one. variables: by rank."""
    pipes, pids = [], []
    for number in range(ranks):
        own, others = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                for pipe in (*pipes, own):
                    pipe.close()
                try:
                    os.environ.update(variables.get(number, {}))
                    run_rank(scene, number, ranks, others)
                except BaseException:
                    traceback.print_exc()
            os._exit(1)
        others.close()
        pipes.append(own)
        pids.append(pid)
    for _ in range(meetings):
        handles = b"".join(pipe.recv(HANDLE, socket.MSG_WAITALL) for pipe in pipes)
        for pipe in pipes:
            pipe.sendall(handles)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    told = [json.loads(pipe.recv(1 << 16)) if status == 0 else None
            for pipe, status in zip(pipes, statuses)]  # fmt: skip
    for pipe in pipes:
        pipe.close()
    return told


def hosts(*names: str) -> dict[int, dict[str, str]]:
    return {rank: {"NCCL_HOSTID": name} for rank, name in enumerate(names)}


def main() -> None:
    print(json.dumps({
        "2": play(results, 2, {}),
        "3": play(all_types, 3, {}),
        "8": play(results, 8, {}),
        "2+2": play(all_types, 4, hosts("a", "a", "b", "b")),
        "2+2+2": play(results, 6, hosts("a", "b", "c", "a", "b", "c")),
        "3+1": play(results, 4, hosts("a", "a", "a", "b")),
        "off": play(results, 3, {1: {"HARP_SHARED_MEMORY": "0"}}),
        "blind": play(results, 3, {1: {"BLIND": "1"}}),
        "killed": play(killed, 3, {}),
        "aborted": play(aborted, 3, {}),
        "absent": play(absent, 3, {}, meetings=2),
    }))  # fmt: skip


main()
