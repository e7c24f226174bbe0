# SPDX-License-Identifier: Apache-2.0
"""What NCCL may do to a plugin, and what it may expect: between two processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from conftest import TIMEOUT_MS, Pair, Transport
from nccl_plugin import INTERNAL_ERROR, INVALID_USAGE, PTR_CUDA, PTR_HOST
from plugin_peer import Peer, PeerFailure

# A lost peer must be noticed in timeout_ms; the rest is for a machine that is busy.
NOTICED_MS = TIMEOUT_MS + 2000


@dataclass
class End:
    """A comm with one buffer registered."""

    rank: Peer
    comm: int
    buffer: int
    mhandle: int

    @classmethod
    def of(cls, rank: Peer, comm: int, size: int, seed: Any = None) -> End:
        buffer = rank.buffer(size=size, seed=seed)
        return cls(rank, comm, buffer, rank.register(comm=comm, buffer=buffer))

    def send(self, size: int, offset: int = 0) -> int:
        return self.rank.isend(
            comm=self.comm, buffer=self.buffer, offset=offset, size=size, mhandle=self.mhandle
        )

    def receive(self, capacity: int, offset: int = 0) -> int:
        return self.rank.irecv(
            comm=self.comm, buffer=self.buffer, offset=offset, size=capacity, mhandle=self.mhandle
        )

    def holds(self, size: int, seed: Any, offset: int = 0) -> bool:
        return self.rank.check(buffer=self.buffer, offset=offset, size=size, seed=seed)


def ends(pair: Pair, size: int, seed: Any = None) -> tuple[End, End]:
    """A connection from a to b with a buffer each; the sender's holds the seed's pattern."""
    sending, receiving = pair.comm(pair.a, pair.b)
    return End.of(pair.a, sending, size, seed), End.of(pair.b, receiving, size)


def sizes(outcomes: list[dict[str, Any]]) -> list[Any]:
    assert all(outcome["error"] is None for outcome in outcomes), outcomes
    return [outcome["size"] for outcome in outcomes]


def first_error(end: End, post: Callable[[], int]) -> Any:
    """NCCL's code, once posting or waiting for what was posted fails; None: nothing has in time.
    What had arrived, or left, before the other side went may still come through."""
    deadline = time.monotonic() + NOTICED_MS / 1e3
    error = None
    while error is None and time.monotonic() < deadline:
        try:
            (error,) = errors_of(end.rank, [post()], NOTICED_MS / 1e3)
        except PeerFailure as failure:
            error = failure.code
    return error


def errors_of(rank: Peer, requests: list[int], timeout: float) -> list[Any]:
    return [outcome["error"] for outcome in rank.wait(requests=requests, timeout=timeout)]


def test_table_and_properties(transport: Transport, api: int) -> None:
    side = transport.sides[0]
    rank = Peer(side.prefix, side.environment)
    try:
        opened = rank.open(path=str(transport.plugin), api=api)
        assert not any(opened["missing"].values()), opened["missing"]
        assert rank.init() == 1
        found = rank.properties()
        assert found["name"]
        assert found["pciPath"] is None or found["pciPath"].startswith("/sys/")
        assert found["ptrSupport"] == PTR_HOST
        assert 0 < found["speed"] < 10_000_000
        assert found["maxComms"] > 0
        if api >= 5:
            assert found["maxRecvs"] == 1
            assert 0 <= found["latency"] < 1e6
        if api >= 7:
            assert (found["netDeviceType"], found["netDeviceVersion"]) == (0, 0)
        if api >= 9:
            assert found["vProps"] == [0]
            assert 0 < found["maxP2pBytes"] <= 1 << 40
            assert 0 < found["maxCollBytes"] <= 1 << 40
        if api >= 11:
            assert found["maxMultiRequestSize"] == 1
        if api >= 12:
            assert (found["railId"], found["planeId"]) == (-1, -1)
        with pytest.raises(PeerFailure) as failure:
            rank.properties(device=1)
        assert failure.value.code == INTERNAL_ERROR
    finally:
        rank.end()


def test_connect_completes_before_accept(pair: Pair) -> None:
    """All ranks of NCCL 2.8 to 2.11 connect before the first accepts; the handle is scratch."""
    listening = pair.b.listen()
    connected = pair.a.connect(handle=listening["handle"])
    assert connected["comm"]
    if pair.api == 4:
        assert connected["tries"] == 1  # it blocks
    accepted = pair.b.accept(listener=listening["listener"])
    assert accepted["comm"]
    pair.b.close_listener(listener=listening["listener"])
    sender = End.of(pair.a, connected["comm"], 100, seed=1)
    receiver = End.of(pair.b, accepted["comm"], 100)
    request = receiver.receive(100)
    assert sizes(pair.a.wait(requests=[sender.send(100)])) == [100]
    assert sizes(pair.b.wait(requests=[request])) == [100]
    assert receiver.holds(100, 1)


def test_accept_is_asked_while_nobody_comes(pair: Pair) -> None:
    if pair.api == 4:
        pytest.skip("version 4 blocks in accept")
    listening = pair.b.listen()
    early = pair.b.accept(listener=listening["listener"], timeout=0.2)
    assert early["comm"] is None and early["tries"] > 1
    connecting = pair.a.start("connect", handle=listening["handle"])
    assert pair.b.accept(listener=listening["listener"])["comm"]
    assert connecting.result(timeout=20)["comm"]


def test_connects_and_accepts_at_once(pair: Pair) -> None:
    """Version 4 blocks in both: each waits for the other side's thread."""
    there, back = pair.a.listen(), pair.b.listen()
    connecting = pair.a.start("connect", handle=back["handle"])
    other = pair.b.start("connect", handle=there["handle"])
    assert connecting.result(timeout=20)["comm"] and other.result(timeout=20)["comm"]
    accepting = pair.a.start("accept", listener=there["listener"])
    assert pair.b.accept(listener=back["listener"])["comm"]
    assert accepting.result(timeout=20)["comm"]


def test_messages_of_many_sizes(pair: Pair) -> None:
    lengths = [1, 0, 7, 64, 0, 0, 1448, 4096, 65_536, 100_001, 1 << 20, 5 << 20, 3]
    sender, receiver = ends(pair, 5 << 20)
    for number, length in enumerate(lengths):
        pair.a.fill(buffer=sender.buffer, offset=0, size=length, seed=number)
        pair.b.fill(buffer=receiver.buffer, offset=0, size=length)
        received = receiver.receive(length)
        sent = pair.a.start("wait", requests=[sender.send(length)])
        assert sizes(pair.b.wait(requests=[received])) == [length]
        assert sizes(sent.result(timeout=20)) == [length]
        assert receiver.holds(length, number), f"message {number} of {length} bytes"


def test_capacity_larger_than_the_message(pair: Pair) -> None:
    sender, receiver = ends(pair, 8192, seed=3)
    requests = [receiver.receive(4096, 0), receiver.receive(4096, 4096)]
    sent = [sender.send(1000), sender.send(0)]
    assert sizes(pair.a.wait(requests=sent)) == [1000, 0]
    assert sizes(pair.b.wait(requests=requests)) == [1000, 0]
    assert receiver.holds(1000, 3)


@pytest.mark.parametrize("size", [2000, 1 << 20])
def test_send_larger_than_the_receive(pair: Pair, size: int) -> None:
    sender, receiver = ends(pair, size, seed=3)
    received, sent = receiver.receive(size // 2), sender.send(size)
    outcome = pair.a.start("wait", requests=[sent])
    assert errors_of(pair.b, [received], 10) == [INVALID_USAGE]
    error = outcome.result(timeout=30)[0]["error"]
    # The bytes may all have left before the peer refused them; then the next one shows it.
    if error is None:
        error = first_error(sender, lambda: sender.send(size))
    assert error in (pair.lost, INVALID_USAGE)


@pytest.mark.parametrize("first", ["receives", "sends"])
def test_all_requests_outstanding(pair: Pair, first: str) -> None:
    """As many as NCCL may post, of different sizes, finish in order."""
    count, room = pair.max_requests, 70_000
    lengths = [(number * 7919) % room for number in range(count)]
    sender, receiver = ends(pair, count * room)
    for number, length in enumerate(lengths):
        pair.a.fill(buffer=sender.buffer, offset=number * room, size=length, seed=number)

    def post_sends() -> list[int]:
        return [sender.send(length, number * room) for number, length in enumerate(lengths)]

    if first == "sends":
        sent = post_sends()
        pair.a.start("wait", requests=sent)
    received = [receiver.receive(room, number * room) for number in range(count)]
    if first == "receives":
        pair.a.start("wait", requests=post_sends())
    assert sizes(pair.b.wait(requests=received)) == lengths
    for number, length in enumerate(lengths):
        assert receiver.holds(length, number, number * room), f"message {number}"


def test_last_request_finishes_though_only_it_is_tested(pair: Pair) -> None:
    sender, receiver = ends(pair, 4 * 200_000, seed=5)
    received = [receiver.receive(200_000, index * 200_000) for index in range(4)]
    sent = [sender.send(200_000, index * 200_000) for index in range(4)]
    waiting = pair.a.start("wait", requests=sent[::-1])
    assert sizes(pair.b.wait(requests=received[::-1])) == [200_000] * 4
    assert sizes(waiting.result(timeout=20)) == [200_000] * 4
    assert receiver.holds(4 * 200_000, 5)


def test_many_comms(pair: Pair) -> None:
    """Messages of many comms, both ways, do not get into each other's way."""
    links = []
    for index in range(16):
        one, other = (pair.a, pair.b) if index % 2 else (pair.b, pair.a)
        sending, receiving = pair.comm(one, other)
        links.append((End.of(one, sending, 30_000, seed=index), End.of(other, receiving, 30_000)))
    for _ in range(3):
        received = [receiver.receive(30_000) for _, receiver in links]
        sent = [sender.send(30_000 - index) for index, (sender, _) in enumerate(links)]
        for index, (sender, receiver) in enumerate(links):
            waiting = sender.rank.start("wait", requests=[sent[index]])
            assert sizes(receiver.rank.wait(requests=[received[index]])) == [30_000 - index]
            assert sizes(waiting.result(timeout=20)) == [30_000 - index]
            assert receiver.holds(30_000 - index, index)
    for sender, receiver in links:
        sender.rank.deregister(comm=sender.comm, mhandle=sender.mhandle)
        receiver.rank.deregister(comm=receiver.comm, mhandle=receiver.mhandle)
        sender.rank.close(comm=sender.comm, sends=True)
        receiver.rank.close(comm=receiver.comm, sends=False)


def test_service_and_progress_at_once(pair: Pair) -> None:
    """Comms come and go while another one carries messages."""
    sending, receiving = pair.comm(pair.a, pair.b)
    shape = {"count": 300, "size": 50_000, "seed": 9, "outstanding": 8}
    sender = pair.a.start("stream", comm=sending, sends=True, **shape)
    receiver = pair.b.start("stream", comm=receiving, sends=False, **shape)
    rounds = 0
    while rounds < 5 or (not receiver.done() and rounds < 50):
        one, other = pair.comm(pair.b, pair.a)
        pair.b.close(comm=one, sends=True)
        pair.a.close(comm=other, sends=False)
        rounds += 1
    for stream in (sender.result(timeout=60), receiver.result(timeout=60)):
        assert (stream["done"], stream["wrong"], stream["error"]) == (300, 0, None)


def test_close_with_requests_outstanding(pair: Pair) -> None:
    """Close is prompt, the memory stays as it is, and the other side gets to know."""
    sender, receiver = ends(pair, 4 << 20, seed=4)
    receiver.receive(4 << 20)
    assert pair.b.close(comm=receiver.comm, sends=False) < 2000
    pair.b.fill(buffer=receiver.buffer, offset=0, size=4 << 20)
    assert first_error(sender, lambda: sender.send(4 << 20)) == pair.lost
    time.sleep(0.5)  # what was on its way has come by now
    assert receiver.holds(4 << 20, None)


def test_close_of_a_sender_with_requests_outstanding(pair: Pair) -> None:
    sender, receiver = ends(pair, 4 << 20, seed=4)
    for _ in range(pair.max_requests):
        sender.send(4 << 20)
    assert pair.a.close(comm=sender.comm, sends=True) < 2000
    assert first_error(receiver, lambda: receiver.receive(4 << 20)) == pair.lost


def test_killed_peer_while_receiving(pair: Pair) -> None:
    _, receiver = ends(pair, 1000)
    requests = [receiver.receive(1000) for _ in range(3)]
    waiting = pair.b.start("wait", requests=requests, timeout=NOTICED_MS / 1e3)
    pair.a.kill()
    assert [outcome["error"] for outcome in waiting.result(timeout=30)] == [pair.lost] * 3


def test_killed_peer_while_sending(pair: Pair) -> None:
    """The receiver dies in the middle of a stream."""
    sending, receiving = pair.comm(pair.a, pair.b)
    shape = {"count": 1_000_000, "size": 1 << 16, "seed": 9, "outstanding": 8}
    pair.b.start("stream", comm=receiving, sends=False, **shape)
    sender = pair.a.start("stream", comm=sending, sends=True, **shape)
    time.sleep(0.5)
    assert not sender.done()
    killed = time.monotonic()
    pair.b.kill()
    assert sender.result(timeout=30)["error"] == pair.lost
    assert (time.monotonic() - killed) * 1e3 < NOTICED_MS


def test_receiver_exits_after_its_last_byte(pair: Pair) -> None:
    """A finished job is no error on the other side."""
    sender, receiver = ends(pair, 1 << 20, seed=8)
    received = receiver.receive(1 << 20)
    waiting = pair.a.start("wait", requests=[sender.send(1 << 20)])
    assert sizes(pair.b.wait(requests=[received])) == [1 << 20]
    assert receiver.holds(1 << 20, 8)
    pair.b.start("leave")
    assert sizes(waiting.result(timeout=20)) == [1 << 20]


def test_sender_closes_after_its_last_byte(pair: Pair) -> None:
    """What was sent arrives, also when the receive is posted late."""
    sender, receiver = ends(pair, 4000, seed=8)
    assert sizes(pair.a.wait(requests=[sender.send(4000)])) == [4000]
    pair.a.close(comm=sender.comm, sends=True)
    pair.a.start("leave")
    pair.a.process.wait(timeout=10)
    received = receiver.receive(4000)
    assert sizes(pair.b.wait(requests=[received])) == [4000]
    assert receiver.holds(4000, 8)


@pytest.mark.parametrize(
    "handle",
    ["02001f90" + "7f000001" + "00" * 120, "a5" * 128, "00" * 128, bytes(range(128)).hex()],
    ids=["socket address", "poison", "zeros", "counting"],
)
def test_foreign_handle(pair: Pair, handle: str) -> None:
    length = 2 * (64 if pair.api < 5 else 128)
    began = time.monotonic()
    with pytest.raises(PeerFailure) as failure:
        pair.a.connect(handle=handle[:length], timeout=NOTICED_MS / 1e3)
    assert failure.value.code in (2, 3, 5, 6)
    assert (time.monotonic() - began) * 1e3 < NOTICED_MS


def test_nobody_listens_any_more(pair: Pair) -> None:
    listening = pair.b.listen()
    pair.b.close_listener(listener=listening["listener"])
    with pytest.raises(PeerFailure) as failure:
        pair.a.connect(handle=listening["handle"], timeout=2 * NOTICED_MS / 1e3)
    assert failure.value.code == pair.lost


def test_misuse_is_refused(pair: Pair) -> None:
    sender, receiver = ends(pair, 4096, seed=1)
    with pytest.raises(PeerFailure) as failure:
        pair.a.register(comm=sender.comm, buffer=sender.buffer, kind=PTR_CUDA)
    assert failure.value.code == INTERNAL_ERROR
    if pair.api >= 5:
        with pytest.raises(PeerFailure) as failure:
            pair.b.irecv(
                comm=receiver.comm,
                buffer=receiver.buffer,
                offset=0,
                size=16,
                mhandle=receiver.mhandle,
                count=2,
            )
        assert failure.value.code == INTERNAL_ERROR
    request = receiver.receive(4096)
    assert sizes(pair.a.wait(requests=[sender.send(4096)])) == [4096]
    assert sizes(pair.b.wait(requests=[request])) == [4096]


def test_flush_needs_nothing(pair: Pair) -> None:
    _, receiver = ends(pair, 4096)
    assert (
        receiver.rank.iflush(
            comm=receiver.comm, buffer=receiver.buffer, size=4096, mhandle=receiver.mhandle
        )
        is None
    )


def test_several_communicators(pair: Pair) -> None:
    """init is counted: one communicator's end does not disturb another's links."""
    for rank in pair.ranks:
        assert rank.init() == 1
    sender, receiver = ends(pair, 1000, seed=2)
    for rank in pair.ranks:
        rank.finalize()
    for one, other in ((sender, receiver), ends(pair, 1000, seed=2)):
        request = other.receive(1000)
        assert sizes(pair.a.wait(requests=[one.send(1000)])) == [1000]
        assert sizes(pair.b.wait(requests=[request])) == [1000]
        assert other.holds(1000, 2)
