# SPDX-License-Identifier: Apache-2.0
"""The life of processes, communicators and threads with a plugin."""

from __future__ import annotations

import os
import signal
import time

import pytest
from ends import End, all_through, ends, ends_between, first_error, flowing, move, stream
from nccl_plugin import INTERNAL_ERROR, SYSTEM_ERROR
from pairs import TIMEOUT_MS, Pair
from plugin_peer import Peer, PeerFailure

ROUNDS, ROUNDS_WARM = 20, 3
ROUNDS_SLOW = 4  # for a transport that takes a second to connect
# Growth by Python and the C library that is allowed after the first rounds.
GROWTH = {"anonymous": 3, "anonymous KiB": 512, "heap KiB": 96}
ACCEPT_LIMIT_S = 120  # version 4's
LINGER_S = 30  # on a busy machine

# Signals that cannot be blocked, and two that the C library reserves.
UNBLOCKABLE = {signal.SIGKILL, signal.SIGSTOP, 32, 33}


def test_init_is_counted_per_communicator(pair: Pair) -> None:
    """init is counted, so the end of one communicator does not affect another's links."""
    for rank in pair.ranks:
        assert rank.init() == 1
    sender, receiver = ends(pair, 1000, seed=2)
    for rank in pair.ranks:
        rank.finalize()
    for one, other in ((sender, receiver), ends(pair, 1000, seed=2)):
        move(one, other, 1000, 2)


@pytest.mark.harp_only
def test_contexts_are_finalized_independently(pair: Pair) -> None:
    """Each context ends once and by itself. finalize of an unknown context ends nothing."""
    if pair.api < 11:
        assert pair.a.contexts() == []
        return
    first, rank = pair.a.contexts()[0], pair.a
    assert rank.init() == 1
    second = rank.contexts()[1]
    assert first and second and first != second
    sender, receiver = ends(pair, 1000, seed=2)
    rank.end_context(context=0)
    rank.end_context(context=first)
    for nobodys in (first, second + 1, 0x5A5A5A5A):
        with pytest.raises(PeerFailure) as failure:
            rank.end_context(context=nobodys)
        assert failure.value.code == INTERNAL_ERROR
    move(sender, receiver, 1000, 2)
    pair.reset()
    rank.end_context(context=second)
    rank.end_context(context=0)  # without an init
    pair.b.finalize()
    for each in pair.ranks:
        assert each.init() == 1
    assert rank.contexts()[0] not in (first, second)
    move(*ends(pair, 1000, seed=2), 1000, 2)


def test_several_progress_threads_run_in_parallel(pair: Pair) -> None:
    """From version 11 on, each communicator has a progress thread. Others open and close at the
    same time."""
    links = [
        ends_between(*((pair.a, pair.b) if number % 2 else (pair.b, pair.a)), 8)
        for number in range(4)
    ]
    streams = [
        outcome
        for number, (sender, receiver) in enumerate(links)
        for outcome in stream(sender, receiver, 100, 30_000 + number, 1000 * number)
    ]
    rounds = 0
    while rounds < 3 or (not all(one.done() for one in streams) and rounds < 30):
        for rank in pair.ranks:
            assert rank.init() == 1
            rank.finalize()
        rounds += 1
    all_through(streams, 100)


def test_init_after_last_finalize_works(pair: Pair) -> None:
    """Calls without a communicator fail, and a new init succeeds."""
    if pair.api < 11:
        pytest.skip("before version 11 there is no finalize")
    for rank in pair.ranks:
        rank.finalize()
    if pair.transport.name != "kernel":  # HARP has closed its device
        with pytest.raises(PeerFailure) as failure:
            pair.a.listen()
        assert failure.value.code == SYSTEM_ERROR
    for rank in pair.ranks:
        assert rank.init() == 1
    move(*ends(pair, 1000, seed=2), 1000, 2)


def test_finalize_with_open_comms_informs_peer(fresh: Pair) -> None:
    """An abort that closes no comm. finalize closes everything, and the peer gets an error."""
    if fresh.api < 11:
        pytest.skip("before version 11 there is no finalize")
    sender, receiver = ends(fresh, 1 << 20, seed=2)
    fresh.b.listen()
    receiver.receive(1 << 20)
    sender.send(1 << 20)
    sender.send(1 << 20)
    if fresh.transport.name == "kernel":
        receiver.close()  # its sockets belong to links; finalize does not close them
    fresh.b.finalize()
    assert first_error(sender, lambda: sender.send(1 << 20)) == fresh.lost


def usage(pair: Pair) -> list[dict[str, int]]:
    return [{**rank.resources(), **rank.memory()} for rank in pair.ranks]


def growth(before: list[dict[str, int]], after: list[dict[str, int]]) -> list[dict[str, int]]:
    """What each rank uses more than GROWTH allows."""
    grown = [{name: now[name] - was[name] for name in now} for was, now in zip(before, after)]
    return [{name: by for name, by in one.items() if by > GROWTH.get(name, 0)} for one in grown]


def last_growth(pair: Pair, before: list[dict[str, int]]) -> list[dict[str, int]]:
    """growth, once flows have ended: versions without finalize leave a closed flow until the peer
    has acknowledged its FIN."""
    limit = time.monotonic() + LINGER_S
    while any(growth(before, usage(pair))) and time.monotonic() < limit:
        time.sleep(0.01)
    return growth(before, usage(pair))


@pytest.mark.quick_cases(1)
def test_repeated_reload_leaks_nothing(fresh: Pair, request: pytest.FixtureRequest) -> None:
    """Many rounds of load, init, job and unload leak no resource."""
    usual = ROUNDS_SLOW if fresh.transport.name == "ethdev" else ROUNDS
    asked = request.config.getoption("--rounds", default=None)
    rounds = asked or (usual if fresh.api == 12 else ROUNDS_WARM + 1)
    before: list[dict[str, int]] = []
    grown: list[dict[str, int]] = []
    for rank in fresh.ranks:
        rank.give_memory_back()
    for number in range(rounds):
        move(*ends(fresh, 10_000, seed=number), 10_000, number)
        fresh.reset()
        for rank in fresh.ranks:
            rank.finalize()
            rank.unload()
        if number < max(ROUNDS_WARM, rounds // 10):  # pools and caches are full then
            before = usage(fresh)
        elif number == rounds - 1:
            grown = last_growth(fresh, before)
        fresh.load()
    assert grown == [{}, {}], f"from {before}"


def test_exit_during_transfer_informs_peer(fresh: Pair) -> None:
    """A process exits without finalize while its progress threads are busy. It ends without an
    error, and the peer's requests fail."""
    there = stream(*ends(fresh, 8), count=1_000_000, size=50_000, seed=1)
    back = stream(*ends_between(fresh.b, fresh.a, 8), count=1_000_000, size=50_000, seed=2)
    flowing(fresh.ranks, 50)
    fresh.b.start("leave")
    assert fresh.b.process.wait(timeout=20) == 0
    for outcome in (there[1], back[0]):
        assert outcome.result(timeout=30)["error"] == fresh.lost


def test_listener_close_fails_unaccepted_connection(pair: Pair) -> None:
    """A listener is closed after a peer has connected to it. The peer's link fails."""
    listening = pair.b.listen()
    comm = pair.a.connect(handle=listening["handle"])["comm"]
    pair.b.close_listener(listener=listening["listener"])
    sender = End.of(pair.a, comm, 1 << 20, seed=1)
    assert first_error(sender, lambda: sender.send(1 << 20)) == pair.lost


def test_connection_closed_before_accept_fails(pair: Pair) -> None:
    """The peer closes its comm before accept. accept returns a comm that fails, or none."""
    listening = pair.b.listen()
    pair.a.close(comm=pair.a.connect(handle=listening["handle"])["comm"])
    if pair.api > 4:  # version 4 would wait for the next one
        time.sleep(0.05)
        comm = pair.b.accept(listener=listening["listener"], timeout=0.2)["comm"]
        if comm:
            receiver = End.of(pair.b, comm, 100)
            assert first_error(receiver, lambda: receiver.receive(100)) == pair.lost
    other = pair.b.listen()
    comm = pair.a.connect(handle=other["handle"])["comm"]
    accepted = pair.b.accept(listener=other["listener"])["comm"]
    move(End.of(pair.a, comm, 100, seed=3), End.of(pair.b, accepted, 100), 100, 3)


def test_accept_blocks_in_version_4(pair: Pair) -> None:
    if pair.api > 4:
        pytest.skip("later versions do not block")
    listening = pair.b.listen()
    accepting = pair.b.start("accept", listener=listening["listener"])
    time.sleep(0.3)
    assert not accepting.done()
    comm = pair.a.connect(handle=listening["handle"])["comm"]
    accepted = accepting.result(timeout=20)
    assert accepted["tries"] == 1
    move(End.of(pair.a, comm, 100, seed=3), End.of(pair.b, accepted["comm"], 100), 100, 3)


@pytest.mark.skipif(not os.environ.get("HARP_TEST_FULL"), reason="takes two minutes")
@pytest.mark.timeout(2 * ACCEPT_LIMIT_S)
def test_accept_times_out_in_version_4(pair: Pair) -> None:
    if pair.api > 4:
        pytest.skip("later versions do not block")
    listener = pair.b.listen()["listener"]
    began = time.monotonic()
    with pytest.raises(PeerFailure) as failure:
        pair.b.start("accept", listener=listener).result(timeout=ACCEPT_LIMIT_S + 10)
    assert failure.value.code == pair.lost
    assert time.monotonic() - began < ACCEPT_LIMIT_S + 5


def test_two_ranks_of_one_host_connect(pair: Pair) -> None:
    if pair.transport.name in ("wire", "flows", "xdp", "ethdev"):
        pytest.skip("this transport connects only two ranks")
    side = pair.transport.sides[0]
    sibling = Peer(side.prefix, {**side.environment, "HARP_TIMEOUT_MS": str(TIMEOUT_MS)})
    try:
        sibling.open(path=str(pair.transport.plugin), api=pair.api)
        assert sibling.init() == 1
        for one, other in ((pair.a, sibling), (sibling, pair.a), (sibling, pair.b)):
            sender, receiver = ends_between(one, other, 200_000, seed=5)
            move(sender, receiver, 200_000, 5)
            for end in (sender, receiver):
                end.close()
    finally:
        sibling.end()


@pytest.mark.harp_only
def test_plugin_threads_block_signals(pair: Pair) -> None:
    wanted = {number for number in range(1, 65) if number not in UNBLOCKABLE}
    for rank in pair.ranks:
        masks = rank.signal_masks()
        assert masks, "no worker was seen to begin"
        for name, mask in masks.items():
            blocked = {number for number in range(1, 65) if mask >> (number - 1) & 1}
            assert wanted <= blocked, (name, wanted - blocked)


@pytest.mark.harp_only
def test_calls_in_forked_child_fail_politely(pair: Pair) -> None:
    """Each call with an inherited object returns an error, and the parent continues."""
    sender, receiver = ends(pair, 2000, seed=3)
    inherited = {
        "handle": pair.a.listen()["handle"],
        "listener": pair.b.listen()["listener"],
        "comm": receiver.comm,
        "buffer": receiver.buffer,
        "mhandle": receiver.mhandle,
    }
    for _ in range(3):
        request = receiver.receive(2000)
        codes = pair.b.fork(**inherited, request=request)
        # The child has nothing to close or to finalize, so these calls may succeed.
        ends_of_it = {codes.pop(name) for name in ("close", "close_listener", "finalize")}
        assert ends_of_it <= {0, SYSTEM_ERROR}
        assert set(codes.values()) == {SYSTEM_ERROR}, codes
        sent = pair.a.start("wait", requests=[sender.send(2000)])
        (outcome,) = pair.b.wait(requests=[request])
        assert (outcome["size"], outcome["error"]) == (2000, None)
        sent.result(timeout=20)
        assert receiver.holds(2000, 3)
    move(*ends_between(pair.b, pair.a, 1000, seed=2), 1000, 2)
