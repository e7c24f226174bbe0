# SPDX-License-Identifier: Apache-2.0
"""The behaviour that NCCL requires of a plugin, between two processes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from ends import (
    End,
    all_through,
    ends,
    ends_between,
    errors_of,
    first_error,
    flowing,
    move,
    refuse_devices,
    sizes,
    stream,
)
from nccl_plugin import INTERNAL_ERROR, INVALID_USAGE, PTR_CUDA, PTR_HOST
from pairs import NOTICED_MS, SHORT_TIMEOUT_MS, Pair
from plugin_peer import PeerFailure


def test_plugin_table_has_every_function(fresh: Pair) -> None:
    """The functions that NCCL calls without a check exist, including finalize."""
    for rank in fresh.ranks:
        opened = rank.open(path=str(fresh.transport.plugin), api=fresh.api)
        assert opened["name"]
        assert not any(opened["missing"].values()), opened["missing"]


@pytest.mark.harp_only
def test_plugin_exports_no_collnet(pair: Pair) -> None:
    assert not pair.a.open(path=str(pair.transport.plugin), api=pair.api)["collnet"]


def check_properties(found: dict[str, Any], api: int) -> None:
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


def test_properties_are_valid_and_equal_on_both_ranks(pair: Pair) -> None:
    """The properties are plausible. Both ranks report the same values, but for the guid, which
    tells the NICs of a host apart."""
    told = [rank.properties() for rank in pair.ranks]
    check_properties(told[0], pair.api)
    assert {**told[0], "guid": 0} == {**told[1], "guid": 0}
    if pair.transport.name != "kernel":
        assert told[0]["maxComms"] == 4096  # connections that an instance has


def test_invalid_device_number_is_internal_error(pair: Pair) -> None:
    refuse_devices(pair.a, pair.b.listen()["handle"], (-1, pair.a.devices(), 1 << 30))


def test_connect_completes_before_accept(pair: Pair) -> None:
    """All ranks of NCCL 2.8 to 2.11 connect before the first one accepts."""
    listening = pair.b.listen()
    connected = pair.a.connect(handle=listening["handle"])
    assert connected["comm"]
    if pair.api == 4:
        assert connected["tries"] == 1  # it blocks
    accepted = pair.b.accept(listener=listening["listener"])
    assert accepted["comm"]
    pair.b.close_listener(listener=listening["listener"])
    sender = End.of(pair.a, connected["comm"], 100, seed=1)
    move(sender, End.of(pair.b, accepted["comm"], 100), 100, 1)


def test_accept_without_connection_returns_no_comm(pair: Pair) -> None:
    if pair.api == 4:
        pytest.skip("version 4 blocks in accept")
    listening = pair.b.listen()
    early = pair.b.accept(listener=listening["listener"], timeout=0.2)
    assert early["comm"] is None and early["tries"] > 1
    connecting = pair.a.start("connect", handle=listening["handle"])
    assert pair.b.accept(listener=listening["listener"])["comm"]
    assert connecting.result(timeout=20)["comm"]


def test_simultaneous_connects_and_accepts_complete(pair: Pair) -> None:
    """In version 4 connect and accept block, and each waits for the other rank's thread."""
    there, back = pair.a.listen(), pair.b.listen()
    connecting = pair.a.start("connect", handle=back["handle"])
    other = pair.b.start("connect", handle=there["handle"])
    assert connecting.result(timeout=20)["comm"] and other.result(timeout=20)["comm"]
    accepting = pair.a.start("accept", listener=there["listener"])
    assert pair.b.accept(listener=back["listener"])["comm"]
    assert accepting.result(timeout=20)["comm"]


def test_interleaved_connects_keep_their_handle_state(pair: Pair) -> None:
    """Each attempt keeps its state in its own copy of the handle, even of the same handle."""
    listening = [pair.b.listen() for _ in range(3)]
    connected = pair.a.connect_all(handles=[one["handle"] for one in listening] * 2)
    comms = [one["comm"] for one in connected]
    assert None not in comms and len(set(comms)) == 6
    for index, one in enumerate(listening):
        seeds = {index, index + 3}
        sent = [End.of(pair.a, comms[seed], 1000, seed).send(1000) for seed in seeds]
        waiting = pair.a.start("wait", requests=sent)
        found = []
        for _ in seeds:  # accept may return them in any order
            comm = pair.b.accept(listener=one["listener"])["comm"]
            receiver = End.of(pair.b, comm, 1000)
            assert sizes(pair.b.wait(requests=[receiver.receive(1000)])) == [1000]
            found += [seed for seed in seeds if receiver.holds(1000, seed)]
        assert set(found) == seeds
        assert sizes(waiting.result(timeout=20)) == [1000] * 2


def test_a_rank_connects_to_itself(pair: Pair) -> None:
    sender, receiver = ends_between(pair.a, pair.a, 300_000, seed=6)
    for _ in range(3):
        pair.a.fill(buffer=receiver.buffer, offset=0, size=300_000)
        move(sender, receiver, 300_000, 6)


def test_messages_of_many_sizes_arrive(pair: Pair) -> None:
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


def test_receive_larger_than_message_reports_message_size(pair: Pair) -> None:
    sender, receiver = ends(pair, 8192, seed=3)
    requests = [receiver.receive(4096, 0), receiver.receive(4096, 4096)]
    sent = [sender.send(1000), sender.send(0)]
    assert sizes(pair.a.wait(requests=sent)) == [1000, 0]
    assert sizes(pair.b.wait(requests=requests)) == [1000, 0]
    assert receiver.holds(1000, 3)


@pytest.mark.parametrize("size", [2000, 1 << 20])
def test_send_larger_than_receive_is_invalid_usage(pair: Pair, size: int) -> None:
    sender, receiver = ends(pair, size, seed=3)
    received, sent = receiver.receive(size // 2), sender.send(size)
    outcome = pair.a.start("wait", requests=[sent])
    assert errors_of(pair.b, [received], 10) == [INVALID_USAGE]
    error = outcome.result(timeout=30)[0]["error"]
    # All bytes may have been sent before the peer reported the error. Then the next send fails.
    if error is None:
        error = first_error(sender, lambda: sender.send(size))
    assert error in (pair.lost, INVALID_USAGE)


@pytest.mark.parametrize("first", ["receives", "sends"])
def test_all_outstanding_requests_finish_in_order(pair: Pair, first: str) -> None:
    """All requests that NCCL may post, of different sizes, finish in order."""
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


def test_requests_beyond_limit_are_retried_without_error(pair: Pair) -> None:
    """A plugin that cannot take a request returns NULL without an error, and is called again."""
    count, room = 300, 1000
    sender, receiver = ends(pair, room, seed=2)
    shape = {"count": count, "size": room, "seed": 3, "outstanding": 100}
    sent = pair.a.start("stream", comm=sender.comm, sends=True, **shape)
    received = pair.b.start("stream", comm=receiver.comm, sends=False, **shape)
    all_through([sent, received], count)


def test_test_of_finished_request_is_harmless(pair: Pair) -> None:
    """NCCL never does this. It must neither crash nor affect later requests."""
    sender, receiver = ends(pair, 5000, seed=7)
    request = receiver.receive(5000)
    sent = sender.send(5000)
    assert sizes(pair.a.wait(requests=[sent])) == [5000]
    assert sizes(pair.b.wait(requests=[request])) == [5000]
    for rank, over in ((pair.a, sent), (pair.b, request)):
        for _ in range(3):
            try:
                rank.test(request=over)
            except PeerFailure as failure:
                assert failure.code in (INTERNAL_ERROR, INVALID_USAGE)
    for _ in range(pair.max_requests):
        pair.b.fill(buffer=receiver.buffer, offset=0, size=5000)
        move(sender, receiver, 5000, 7)


def test_testing_only_last_request_finishes_all(pair: Pair) -> None:
    sender, receiver = ends(pair, 4 * 200_000, seed=5)
    received = [receiver.receive(200_000, index * 200_000) for index in range(4)]
    sent = [sender.send(200_000, index * 200_000) for index in range(4)]
    waiting = pair.a.start("wait", requests=sent[::-1])
    assert sizes(pair.b.wait(requests=received[::-1])) == [200_000] * 4
    assert sizes(waiting.result(timeout=20)) == [200_000] * 4
    assert receiver.holds(4 * 200_000, 5)


def test_messages_of_many_comms_stay_separate(pair: Pair) -> None:
    """Messages of many comms in both directions arrive in the right buffers."""
    links = []
    for index in range(16):
        one, other = (pair.a, pair.b) if index % 2 else (pair.b, pair.a)
        links.append(ends_between(one, other, 30_000, seed=index))
    for _ in range(3):
        received = [receiver.receive(30_000) for _, receiver in links]
        sent = [sender.send(30_000 - index) for index, (sender, _) in enumerate(links)]
        for index, (sender, receiver) in enumerate(links):
            waiting = sender.rank.start("wait", requests=[sent[index]])
            assert sizes(receiver.rank.wait(requests=[received[index]])) == [30_000 - index]
            assert sizes(waiting.result(timeout=20)) == [30_000 - index]
            assert receiver.holds(30_000 - index, index)
    for sender, receiver in links:
        for end in (sender, receiver):
            end.rank.deregister(comm=end.comm, mhandle=end.mhandle)
            end.close()


def test_memory_registered_twice_survives_one_deregistration(pair: Pair) -> None:
    """Memory stays registered until its last deregistration, and a running transfer continues."""
    sender, receiver = ends(pair, 300_000, seed=7)
    for end in (sender, receiver):
        again = end.rank.register(comm=end.comm, buffer=end.buffer)
        request = receiver.receive(300_000)
        end.rank.deregister(comm=end.comm, mhandle=again)
        waiting = sender.rank.start("wait", requests=[sender.send(300_000)])
        assert sizes(receiver.rank.wait(requests=[request])) == [300_000]
        assert sizes(waiting.result(timeout=20)) == [300_000]
        assert receiver.holds(300_000, 7)


def test_comms_open_and_close_during_transfer(pair: Pair) -> None:
    """Comms open and close while another one carries messages."""
    streams = stream(*ends(pair, 8), count=300, size=50_000)
    rounds = 0
    while rounds < 5 or (not streams[0].done() and rounds < 50):
        for end in ends_between(pair.b, pair.a, 8):
            end.close()
        rounds += 1
    all_through(streams, 300)


def test_close_of_receiver_with_outstanding_requests_is_prompt(pair: Pair) -> None:
    """close returns soon, the memory does not change afterwards, and the sender gets an error."""
    sender, receiver = ends(pair, 4 << 20, seed=4)
    receiver.receive(4 << 20)
    assert receiver.close() < 2000
    pair.b.fill(buffer=receiver.buffer, offset=0, size=4 << 20)
    assert first_error(sender, lambda: sender.send(4 << 20)) == pair.lost
    time.sleep(0.2)  # segments on their way have arrived by now
    assert receiver.holds(4 << 20, None)


def test_close_of_sender_with_outstanding_requests_is_prompt(pair: Pair) -> None:
    sender, receiver = ends(pair, 4 << 20, seed=4)
    for _ in range(pair.max_requests):
        sender.send(4 << 20)
    assert sender.close() < 2000
    assert first_error(receiver, lambda: receiver.receive(4 << 20)) == pair.lost


@pytest.mark.parametrize("when", ["with the close", "before the close"])
@pytest.mark.parametrize("aborts", ["sender", "receiver"])
def test_memory_may_be_unmapped_right_after_abort(pair: Pair, aborts: str, when: str) -> None:
    """An abort in the middle of transfers: each side closes its comm and unmaps the memory at once,
    or deregisters and unmaps the memory first, as NCCL does. A later access to the memory would
    crash the rank."""
    room = 1 << 20
    for number in range(3):
        sender, receiver = ends(pair, 8 * room)
        received = [receiver.receive(room, index * room) for index in range(8)]
        sent = [sender.send(room, index * room) for index in range(8)]
        through = pair.a.start("wait", requests=sent[: 2 * number])
        assert sizes(pair.b.wait(requests=received[: 2 * number])) == [room] * (2 * number)
        through.result(timeout=20)
        order = [sender, receiver] if aborts == "sender" else [receiver, sender]
        for end in order:
            known = {} if when == "with the close" else {"mhandle": end.mhandle}
            assert end.rank.abort(comm=end.comm, buffer=end.buffer, **known) < 2000
    move(*ends(pair, 1000, seed=1), 1000, 1)


def test_killed_peer_fails_receives(short_timeout: Pair) -> None:
    _, receiver = ends(short_timeout, 1000)
    requests = [receiver.receive(1000) for _ in range(3)]
    waiting = short_timeout.b.start("wait", requests=requests, timeout=NOTICED_MS / 1e3)
    short_timeout.a.kill()
    outcomes = waiting.result(timeout=30)
    assert [outcome["error"] for outcome in outcomes] == [short_timeout.lost] * 3


def test_killed_peer_fails_sends(short_timeout: Pair) -> None:
    """The receiver is killed in the middle of a stream."""
    a, b = short_timeout.ranks
    receives, sends = stream(*ends(short_timeout, 8), count=1_000_000, size=1 << 16)
    flowing([a, b], 20)
    assert not sends.done()
    killed = time.monotonic()
    b.kill()
    assert sends.result(timeout=30)["error"] == short_timeout.lost
    assert (time.monotonic() - killed) * 1e3 < NOTICED_MS


def test_receiver_exit_after_last_byte_is_no_error(fresh: Pair) -> None:
    """The end of a finished job is no error for the sender."""
    sender, receiver = ends(fresh, 1 << 20, seed=8)
    received = receiver.receive(1 << 20)
    waiting = fresh.a.start("wait", requests=[sender.send(1 << 20)])
    assert sizes(fresh.b.wait(requests=[received])) == [1 << 20]
    assert receiver.holds(1 << 20, 8)
    fresh.b.start("leave")
    assert sizes(waiting.result(timeout=20)) == [1 << 20]


def test_sender_exit_after_last_byte_still_delivers(short_timeout: Pair) -> None:
    """Sent data arrives even if the receives are posted late, at a time at which a sender with
    missing data would count as silent."""
    count = 4
    sender, receiver = ends(short_timeout, count * 4000, seed=8)
    sent = [sender.send(4000, index * 4000) for index in range(count)]
    assert sizes(short_timeout.a.wait(requests=sent)) == [4000] * count
    sender.close()
    short_timeout.a.start("leave")
    assert short_timeout.a.process.wait(timeout=10) == 0
    time.sleep(SHORT_TIMEOUT_MS / 2e3)
    for index in range(count):
        received = receiver.receive(4000, index * 4000)
        assert sizes(short_timeout.b.wait(requests=[received])) == [4000]
    assert receiver.holds(count * 4000, 8)


@pytest.mark.parametrize(
    "handle",
    ["02001f90" + "7f000001" + "00" * 120, "a5" * 128, "00" * 128, bytes(range(128)).hex()],
    ids=["socket address", "poison", "zeros", "counting"],
)
def test_foreign_handle_is_refused(pair: Pair, handle: str) -> None:
    length = 2 * (64 if pair.api < 5 else 128)
    began = time.monotonic()
    with pytest.raises(PeerFailure) as failure:
        pair.a.connect(handle=handle[:length], timeout=NOTICED_MS / 1e3)
    assert failure.value.code in (2, 3, 5, 6)
    assert (time.monotonic() - began) * 1e3 < NOTICED_MS


def test_connect_to_closed_listener_fails(pair: Pair) -> None:
    listening = pair.b.listen()
    pair.b.close_listener(listener=listening["listener"])
    with pytest.raises(PeerFailure) as failure:
        pair.a.connect(handle=listening["handle"], timeout=2 * NOTICED_MS / 1e3)
    assert failure.value.code == pair.lost


def test_invalid_calls_are_refused(pair: Pair) -> None:
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
    move(sender, receiver, 4096, 1)


# NCCL's code of each call with NULL; closing or deregistering NULL succeeds.
NULL_CALLS = {
    **dict.fromkeys(("accept", "regMr", "isend", "irecv", "test"), INTERNAL_ERROR),
    **dict.fromkeys(("deregMr", "iflush", "closeSend", "closeRecv", "closeListen"), 0),
}


def _no_such_device(pair: Pair) -> None:
    pair.a.listen(device=1)


def _connect_by_a_strange_handle(pair: Pair) -> None:
    pair.a.connect(handle=bytes(range(64 if pair.api == 4 else 128)).hex())


def _connect_to_nobody(pair: Pair) -> None:
    listening = pair.b.listen()
    pair.b.close_listener(listener=listening["listener"])
    pair.a.connect(handle=listening["handle"], timeout=2 * NOTICED_MS / 1e3)


def _memory_of_a_gpu(pair: Pair) -> None:
    sender, _ = ends(pair, 4096)
    pair.a.register(comm=sender.comm, buffer=sender.buffer, kind=PTR_CUDA)


def _send_the_wrong_way(pair: Pair) -> None:
    receiver, _ = ends_between(pair.b, pair.a, 4096)[::-1]
    receiver.send(4096)


FAILURES = {
    "listen": _no_such_device,
    "connect": _connect_by_a_strange_handle,
    "connect, later": _connect_to_nobody,
    "regMr": _memory_of_a_gpu,
    "isend": _send_the_wrong_way,
}


@pytest.mark.parametrize("fails", FAILURES)
def test_null_comm_calls_after_error_are_safe(pair: Pair, fails: str) -> None:
    """NCCL 2.19 to 2.30 treat a connection as made even if connect or accept failed, and close the
    NULL comm that they got."""
    with pytest.raises(PeerFailure) as failure:
        FAILURES[fails](pair)
    assert failure.value.code is not None, failure.value
    assert pair.a.null_calls() == NULL_CALLS
    sender, receiver = ends(pair, 1000, seed=1)
    for end in (sender, receiver):
        assert end.rank.null_calls(comm=end.comm) == NULL_CALLS
    move(sender, receiver, 1000, 1)


def test_iflush_needs_no_request(pair: Pair) -> None:
    _, receiver = ends(pair, 4096)
    assert (
        receiver.rank.iflush(
            comm=receiver.comm, buffer=receiver.buffer, size=4096, mhandle=receiver.mhandle
        )
        is None
    )
