# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes of this host, with the C library by ctypes, and collectives of numpy's arrays.
The third word of the command line is the plugin."""

from __future__ import annotations

import contextlib
import ctypes as c
import json
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from c_library import HANDLE, NAME, Call, View, error, library

(ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER,
 BARRIER) = range(9)  # fmt: skip
NAMES = ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all",
         "gather", "scatter", "barrier"]  # fmt: skip
DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32",
          "float64", "float16", "bfloat16", "bool"]  # fmt: skip
SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR, AVERAGE = range(8)
WAIT_MS = 30_000

Arrays = Sequence[Any]


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def views(arrays: Arrays) -> Any:
    return (View * max(1, len(arrays)))(*[View(one.ctypes.data, one.nbytes) for one in arrays])


class Group:
    """A rank's part of a group whose processes exchange their handles by the parent."""

    def __init__(self, number: int, ranks: int, pipe: socket.socket) -> None:
        self.number, self.ranks, self.pipe = number, ranks, pipe
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

    def post(self, kind: int, read: Arrays, written: Arrays, reduction: int = SUM, root: int = 0,
             limit: int = WAIT_MS, waits: int = 1) -> Any:  # fmt: skip
        """The harp_op, or None if the call is refused. The arrays must live until it is over."""
        arrays = [*read, *written]
        dtype = DTYPES.index(arrays[0].dtype.name) if arrays else 0
        call = Call(kind, dtype, reduction, root, 0, waits, limit, views(read), views(written))
        return library.harp_post(self.group, c.byref(call), error)

    def end(self, op: Any) -> int:
        """Waits for a harp_op. Its state at the end."""
        if not op:
            return -1
        state = int(library.harp_op_wait(c.c_void_p(op), c.c_int64(0), 1, error))
        library.harp_op_free(c.c_void_p(op))
        return state

    def call(self, kind: int, read: Arrays, written: Arrays, **more: int) -> int:
        """The state at the end."""
        return self.end(self.post(kind, read, written, **more))

    def all_reduce(self, array: Any, reduction: int, limit: int = WAIT_MS) -> int:
        return self.call(ALL_REDUCE, (), (array,), reduction=reduction, limit=limit)

    def rendezvous(self) -> None:
        """Waits for the other ranks, beside HARP."""
        self.pipe.sendall(bytes(HANDLE))
        self.pipe.recv(self.ranks * HANDLE, socket.MSG_WAITALL)

    def leave(self) -> None:
        library.harp_group_destroy(self.group)


Scene = Callable[[Group], Any]


def run_rank(scene: Scene, number: int, ranks: int, pipe: socket.socket) -> None:
    c.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent
    assert library.harp_collectives_open(sys.argv[2].encode(), error) == 0, error.value
    group = Group(number, ranks, pipe)
    told = json.dumps(scene(group)).encode()
    group.leave()
    pipe.sendall(told)
    os._exit(0)


def play(scene: Scene, ranks: int, variables: dict[int, dict[str, str]],
         meetings: int = 1) -> list[Any]:  # fmt: skip
    """What each rank told; None of a killed one. variables: by rank. meetings: of the ranks, beside
    HARP; each group needs one."""
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
