# SPDX-License-Identifier: Apache-2.0
"""Calls of the C library of collectives by ctypes, without PyTorch: a group of two ranks in one
process, over links of the process to itself. Prints a line of JSON with what the calls gave.

Usage: library.py LIBRARY PLUGIN FOLDER
FOLDER: the configuration of a second process, at the other end of the wire.
"""

from __future__ import annotations

import ctypes as c
import json
import mmap
import os
import signal
import socket
import sys
import time
from typing import Any, Optional

from c_library import HANDLE, NAME, Call, View, error, library

RANKS = 2
ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, BARRIER, SEND, RECEIVE = range(3, 11)
SHORT, LONG = 32768, 3_000_000  # bytes: LINK_SHORT, and a message that is registered
WAIT_MS = 20_000
SOON_MS = 8_000  # for a failure, on a busy machine
LIMIT_MS = 300  # of an operation that cannot end
LATE_MS = (1 << 64) // 1_000_000 + 1  # as ns, it is a fraction of a millisecond modulo 2^64


def views(buffers: list[Any]) -> Any:
    return (View * len(buffers))(*[View(c.addressof(one), c.sizeof(one)) for one in buffers])


def post(
    group: Any, kind: int, peer: int, read: list[Any], written: list[Any], limit: int = WAIT_MS,
    tag: int = 0,
) -> Optional[Any]:  # fmt: skip
    call = Call(kind, 0, 0, peer, tag, 0, limit, views(read), views(written))
    op = library.harp_post(group, c.byref(call), error)
    return c.c_void_p(op) if op else None


def end(op: Any, wait: int = WAIT_MS) -> int:
    state = library.harp_op_wait(op, c.c_int64(wait), 1, error)
    library.harp_op_free(op)
    return int(state)


def zeros(size: int) -> Any:
    return (c.c_char * size)()


def make_groups(ranks: int = RANKS) -> list[Any]:
    handles = [zeros(HANDLE) for _ in range(ranks)]
    groups = [
        c.c_void_p(library.harp_group_create(rank, ranks, 0, handles[rank], error))
        for rank in range(ranks)
    ]
    assert all(group.value for group in groups), error.value
    for group in groups:
        library.harp_group_start(group, b"".join(map(bytes, handles)), bytes(ranks * NAME), error)
    return groups


def send_all(groups: list[Any], sizes: list[int]) -> list[str]:
    """Sends messages of rank 0 to rank 1, all at once. Says what went wrong."""
    sent = [c.create_string_buffer(bytes([65 + i % 26]) * size, size) for i, size in
            enumerate(sizes)]  # fmt: skip
    got = [zeros(size) for size in sizes]
    receives = [post(groups[1], RECEIVE, 0, [], [one]) for one in got]
    sends = [post(groups[0], SEND, 1, [one], []) for one in sent]
    states = [end(op) for op in (*receives, *sends)]
    if states != [1] * len(states):
        return [error.value.decode()]
    return [f"{len(a)} bytes differ" for a, b in zip(sent, got) if bytes(a) != bytes(b)]


def receive_late(groups: list[Any]) -> int:
    """The state of a receive with a limit of centuries, some time after its post."""
    op = post(groups[1], RECEIVE, 0, [], [zeros(1)], LATE_MS)
    time.sleep(0.2)
    state = int(library.harp_op_state(op))
    sent = post(groups[0], SEND, 1, [zeros(1)], [])
    return state or (end(sent) + end(op) if sent else -1)


def exchange(group: Any, rank: int) -> None:
    """Rank 0 sends a byte to rank 1, which sends one back. This opens the links."""
    calls = [(SEND, [zeros(1)], []), (RECEIVE, [], [zeros(1)])]
    for kind, read, written in calls if rank == 0 else calls[::-1]:
        assert end(post(group, kind, 1 - rank, read, written)) == 1, error.value


def join(rank: int, pipe: socket.socket) -> Any:
    """This process's rank of a group with another process."""
    handle = zeros(HANDLE)
    group = c.c_void_p(library.harp_group_create(rank, RANKS, 0, handle, error))
    assert group.value, error.value
    pipe.sendall(bytes(handle))
    other = pipe.recv(HANDLE, socket.MSG_WAITALL)
    handles = bytes(handle) + other if rank == 0 else other + bytes(handle)
    library.harp_group_start(group, handles, bytes(RANKS * NAME), error)
    exchange(group, rank)
    return group


def start_stopping_peer(folder: str) -> tuple[int, socket.socket]:
    """Forks a process that is rank 1 of a group, and stops once the links are open. folder: of its
    configuration. Must precede the first call of the library."""
    own, others = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        c.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent
        os.environ["HARP_CONF_DIR"] = folder
        os.environ["HARP_RUN_DIR"] = f"{folder}/run"
        assert library.harp_collectives_open(sys.argv[2].encode(), error) == 0, error.value
        join(1, others)
        os.kill(os.getpid(), signal.SIGSTOP)
    return pid, own


def fail_beside_stopped(pid: int, pipe: socket.socket) -> dict[str, Any]:
    """A receive that passes its limit, while the peer is stopped and so does not acknowledge the
    last message: the seconds that it took, and its sentence. The library copies short messages, so
    that the send is done at once."""
    group = join(0, pipe)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    began = time.monotonic()
    received = post(group, RECEIVE, 1, [], [zeros(1)], LIMIT_MS)
    assert end(post(group, SEND, 1, [zeros(1)], [])) == 1
    state = end(received)
    told = {"state": state, "seconds": time.monotonic() - began, "text": error.value.decode()}
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    library.harp_group_destroy(group)
    return told


def wait_for_absent() -> str:
    """The sentence of a root that gathers from rank 3, and from ranks 1 and 2, which are absent."""
    groups = make_groups(4)
    own, parts = zeros(8), [zeros(8) for _ in groups]

    def gather(senders: tuple[int, ...], limit: int) -> int:
        """The state at the root."""
        for sent in [post(groups[rank], GATHER, 0, [own], []) for rank in senders]:
            assert sent and end(sent) == 1, error.value
        return end(post(groups[0], GATHER, 0, [own], parts, limit))

    assert gather((1, 2, 3), WAIT_MS) == 1, error.value  # opens the links
    assert gather((3,), LIMIT_MS) == -1
    sentence = error.value.decode()
    for group in groups:
        library.harp_group_destroy(group)
    return sentence


def late_behind_another() -> dict[str, Any]:
    """A barrier of rank 0, behind a gather with a longer limit. Rank 1 calls nothing."""
    groups, own, parts = make_groups(), zeros(8), [zeros(8), zeros(8)]
    gather = post(groups[0], GATHER, 0, [own], parts)
    barrier = post(groups[0], BARRIER, 0, [], [], LIMIT_MS)
    states = [end(barrier, SOON_MS), end(gather, SOON_MS)]
    told = {"states": states, "text": error.value.decode()}
    for group in groups:
        library.harp_group_destroy(group)
    return told


def failure_elsewhere() -> int:
    """The state of a receive of rank 1, after one of rank 0 has passed its limit. Nobody ends the
    groups before."""
    groups, byte = make_groups(), zeros(1)
    for sender in range(RANKS):
        receiver = 1 - sender
        received = post(groups[receiver], RECEIVE, sender, [], [byte])
        sent = post(groups[sender], SEND, receiver, [byte], [])
        assert end(received) == end(sent) == 1, error.value
    other = post(groups[1], RECEIVE, 0, [], [byte])
    assert end(post(groups[0], RECEIVE, 1, [], [byte], LIMIT_MS)) == -1
    state = end(other, SOON_MS)
    for group in groups:
        library.harp_group_destroy(group)
    return state


def refusals(group: Any) -> dict[str, str]:
    """The sentences for outputs that are smaller than what the rank gives itself."""
    # The C library's allocator has room for eight bytes more than the small ones.
    large, small = [zeros(4088), zeros(4088)], [zeros(4080), zeros(4080)]
    calls = {
        "all_gather": (ALL_GATHER, large[:1], small),
        "reduce_scatter": (REDUCE_SCATTER, large, small[:1]),
        "all_to_all": (ALL_TO_ALL, large, small),
        "gather": (GATHER, large[:1], small),
        "scatter": (SCATTER, large, small[:1]),
    }
    said = {}
    for name, (kind, read, written) in calls.items():
        said[name] = "accepted" if post(group, kind, 0, read, written) else error.value.decode()
    return said


def refuse_tag(group: Any) -> str:
    accepted = post(group, SEND, 1, [zeros(8)], [], tag=-1)
    return "accepted" if accepted else error.value.decode()


def flood() -> str:
    """The sentence of a rank that gets an endless message which it has no receive for. The pages of
    the message are not used before they are sent."""
    groups, byte = make_groups(), zeros(1)
    early = [post(groups[0], SEND, 1, [byte], [], tag=tag) for tag in (7, 8, 9)]
    received = [post(groups[1], RECEIVE, 0, [], [byte], tag=tag) for tag in (9, 8, 7)]
    assert [end(op) for op in early + received] == [1] * 6, error.value
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") // 8 + 1
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        large = (c.c_char * size).from_buffer(pages)
        wanted = post(groups[1], RECEIVE, 0, [], [byte], SOON_MS, tag=1)
        sent = post(groups[0], SEND, 1, [large], [], SOON_MS, tag=2)
        assert end(wanted) == -1
        sentence = error.value.decode()
        end(sent)
        for group in groups:
            library.harp_group_destroy(group)
        del large
    return sentence


def call_in_child(groups: list[Any]) -> dict[str, Any]:
    """What each call gives in a process forked while an operation is under way: a result, and the
    sentence. The parent's operation goes on: `parent` has its states."""
    pending = post(groups[1], RECEIVE, 0, [], [zeros(1)])
    calls = {
        "open": lambda: library.harp_collectives_open(sys.argv[2].encode(), error),
        "create": lambda: library.harp_group_create(0, 2, 0, zeros(HANDLE), error),
        "start": lambda: library.harp_group_start(groups[0], None, None, error),
        "share": lambda: library.harp_group_share(groups[0], c.c_int64(WAIT_MS), error),
        "post": lambda: post(groups[0], SEND, 1, [zeros(1)], []),
        "wait": lambda: library.harp_op_wait(pending, c.c_int64(WAIT_MS), 1, error),
        "state": lambda: library.harp_op_state(pending),
        "free": lambda: library.harp_op_free(pending),
        "abort": lambda: library.harp_group_abort(groups[0], b"by the child"),
        "destroy": lambda: library.harp_group_destroy(groups[0]),
    }
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # the calls must not block
        told = {}
        for name, call in calls.items():
            error.value = b""
            told[name] = call(), error.value.decode()
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    status = os.waitpid(pid, 0)[1]
    parent = [end(post(groups[0], SEND, 1, [zeros(1)], [])), end(pending)]
    return {"status": status, "parent": parent, "child": json.loads(said or "{}")}


def main() -> None:
    peer = start_stopping_peer(sys.argv[3])
    assert library.harp_collectives_open(sys.argv[2].encode(), error) == 0, error.value
    groups = make_groups()
    told = {
        "mixed": send_all(groups, [SHORT, LONG, SHORT - 15, LONG, 0, LONG, SHORT + 1]),
        "late limit": receive_late(groups),
        "refusals": refusals(groups[0]),
        "forked": call_in_child(groups),
        "absent": wait_for_absent(),
        "late behind another": late_behind_another(),
        "failure elsewhere": failure_elsewhere(),
        "flood": flood(),
        "negative tag": refuse_tag(groups[0]),
        "stopped peer": fail_beside_stopped(*peer),
    }
    print(json.dumps(told))


main()
