# SPDX-License-Identifier: Apache-2.0
"""A transfer executes no locked instruction for a packet, and no system call but those that move
packets. Both ranks run under callgrind, which counts every instruction of HARP and of the C
library.

A caller's poll takes the poll lock once, because several threads may poll. A worker keeps the lock
while it finds work. With HARP_TEST_FULL=1 the test also runs over the port `wire`."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from executed import Executed, Run, is_locked, watched
from ranks import Rank, Site, connect, packet_site, remove_wire, wire_path, wire_site

FULL = bool(os.environ.get("HARP_TEST_FULL"))
LATE_S = 100.0
FEW = 12  # executions of a place outside of the steady state: registration, ticks, answers
LARGE = (12, 1 << 20)  # messages, and the bytes of each: at least 17 frames
SMALL = (60, 8)
FRAMES_PER_MESSAGE = 17

# Executed at most once for a poll. The first three take the poll lock, and the compiler may inline
# them. The others are fences between the processes of a wire.
FOR_A_POLL = {
    *("poll_trylock", "harp_instance_hold", "harp_instance_progress"),
    *("wire_flush", "wire_receive", "harp_wire_wake"),
}
# A worker that falls asleep or wakes up. The last two are of the C library's read, write and ppoll.
FOR_A_SLEEP = {
    *("work", "sleep_until_work", "wire_arm", "harp_wire_wake"),
    *("__pthread_enable_asynccancel", "__pthread_disable_asynccancel"),
}
SLEEP_CALLS = ("ppoll", "poll", "read", "write", "clock_nanosleep")
FOR_A_MESSAGE = 3  # of one chunk
FOR_A_POST = 6  # on both sides of a post that wakes or that a stalled flow waits for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SANITIZER_RUNTIME" in os.environ, reason="sanitizers count, too"),
    pytest.mark.skipif(not shutil.which("valgrind"), reason="there is no valgrind"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the instructions are x86-64's"),
]


@pytest.mark.parametrize(
    ("code", "locked"),
    [
        ("f00fb111", True),  # lock cmpxchg %edx,(%rcx)
        ("f048830c2400", True),  # lock orq $0,(%rsp), a fence
        ("66f00fc101", True),  # lock xadd %ax,(%rcx)
        ("8702", True),  # xchg %eax,(%rdx)
        ("488703", True),  # xchg %rax,(%rbx)
        ("0faef0", True),  # mfence
        ("4887c3", False),  # xchg %rax,%rbx
        ("0faee8", False),  # lfence
        ("f3a4", False),  # rep movsb
        ("488902", False),  # mov %rax,(%rdx)
    ],
)
def test_locked_instructions_are_recognized(code: str, locked: bool) -> None:
    assert is_locked(bytes.fromhex(code).ljust(15, b"\x90")) == locked


@pytest.fixture(params=["worker", "caller"])
def drive(request: Any) -> str:
    return str(request.param)


@pytest.fixture(params=["packet", "wire"] if FULL else ["packet"])
def port(request: Any) -> str:
    return str(request.param)


@pytest.fixture
def ranks(port: str, drive: str, request: Any, tmp_path: Path) -> Iterator[tuple[Executed, ...]]:
    """What the sender and the receiver have executed: in a stream of large messages, then in one
    of small ones."""
    path = wire_path()
    keys = {"timeout_ms": 60000, "threads": drive}
    if port == "packet":
        hosts = request.getfixturevalue("lab").hosts
        sites = [packet_site(tmp_path / str(host.index), host, **keys) for host in hosts]
    else:
        sites = [wire_site(tmp_path / str(end), path, end, **keys) for end in (1, 2)]
    folders = tmp_path / "sender", tmp_path / "receiver"
    _transfer([watched(*pair, "do_stream") for pair in zip(sites, folders)])
    yield tuple(map(Executed, folders))
    remove_wire(path)


def _transfer(sites: list[Site]) -> None:
    with Rank(sites[0]) as sender, Rank(sites[1]) as receiver:
        for rank in (sender, receiver):
            rank.start("init")
        for rank in (sender, receiver):
            rank.finish(LATE_S)
        link = connect(sender, receiver)
        for count, size in ((4, 1 << 20), LARGE, SMALL):
            link.start(count, size, int(LATE_S * 1e3))
            link.finish(LATE_S)
        for rank in (sender, receiver):
            rank.do("finalize")
            rank.start("exit")
            assert rank.wait(LATE_S) == 0


def _frames(run: Run) -> int:
    return run.calls("ip_transmit") + run.calls("harp_stack_receive")


def _told(run: Run) -> str:
    return ", ".join(f"{count} {name}+{at:#x}" for (name, at), count in run.locked.most_common(12))


def _no_lock_for_a_packet(run: Run) -> None:
    messages = LARGE[0]
    assert _frames(run) >= FRAMES_PER_MESSAGE * messages
    for (function, address), count in run.locked.items():
        most = 2 * messages + FEW
        if function in FOR_A_POLL | FOR_A_SLEEP:
            most += 2 * run.calls("poll_once")
        assert count <= most, f"{function}+{address:#x}: {_told(run)}"


def _few_locks_for_a_message(run: Run) -> None:
    """Claims, the words that tell that a message is done, and posts. Of the two locked instructions
    in harp_instance_post, the second one is executed if the post was not queued before."""
    of_post = [count for (name, _), count in run.locked.items() if name == "harp_instance_post"]
    posts = min(of_post) if len(of_post) > 1 else 0
    counted = sum(
        count for (name, _), count in run.locked.items() if name not in FOR_A_POLL | FOR_A_SLEEP
    )
    print(f"{counted / SMALL[0]:.1f} locked instructions for a short message: {_told(run)}")
    assert counted <= FOR_A_MESSAGE * SMALL[0] + FOR_A_POST * posts + 4 * FEW, _told(run)


def _system_calls_move_packets(rank: Executed, port: str) -> None:
    calls = rank.system_calls
    sent, polls = (
        sum(run.calls(name) for run in rank.all) for name in ("ip_transmit", "poll_once")
    )
    assert calls["futex"] <= FEW, calls
    assert calls["sendmsg"] + calls["sendmmsg"] <= sent + FEW, calls
    if port == "packet":
        assert 0 < calls["recvmmsg"] <= polls + FEW, calls


def _worker_keeps_the_poll_lock(both: tuple[Executed, ...], port: str) -> None:
    """Between two sleeps or yields. A sleep takes the lock once more, to look at the deadline, and
    arms the port before and after."""
    released, arms, polls = (
        sum(run.calls(name) for rank in both for run in rank.runs)
        for name in ("harp_instance_let_go", f"{port}_arm", "harp_instance_poll_held")
    )
    sleeps = arms / 2
    print(f"{released} releases, {sleeps} sleeps, {polls} polls")
    # On a very busy machine callers poll instead, or a poll lasts so long that the worker then
    # sleeps. Here 0.6 to 0.7 of the polls find nothing, and a yield or sleep follows. A worker that
    # takes the lock for each poll releases it as often.
    busy = os.getloadavg()[0] > 4 * (os.cpu_count() or 1)
    assert busy or polls < FEW or released - sleeps < 0.85 * polls


def _cancellation_points_only_sleep(rank: Executed) -> None:
    """The calls that move packets are no points of thread cancellation, which lock."""
    cancel = sum(
        count for run in rank.all for (name, _), count in run.locked.items()
        if name == "__pthread_enable_asynccancel"
    )  # fmt: skip
    assert cancel <= sum(rank.system_calls[name] for name in SLEEP_CALLS) + FEW


def test_packets_take_no_locked_instruction_and_no_futex(
    ranks: tuple[Executed, ...], port: str, drive: str
) -> None:
    for rank in ranks:
        _, large, small = rank.runs
        _no_lock_for_a_packet(large)
        _few_locks_for_a_message(small)
        _cancellation_points_only_sleep(rank)
        _system_calls_move_packets(rank, port)
    if drive == "worker":
        _worker_keeps_the_poll_lock(ranks, port)
