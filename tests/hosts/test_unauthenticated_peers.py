# SPDX-License-Identifier: Apache-2.0
"""Peers without the token are rejected and counted; the listener still serves."""

from __future__ import annotations

import contextlib
import random
import secrets
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import Failed, Rank, packet_site, wait_until
from unauthenticated_peers import (
    Scene,
    UnauthenticatedPeer,
    hello,
    scene_on,
    sites_of,
    token_of,
)

from harp.observe import trace
from tools.hosts.lab import Lab

HELLO_TIMEOUT_S = 5  # seconds until a silent peer is closed
ROOM = 512  # unauthenticated peers at a time, of all listeners of an instance
LINKS_MOST = 256  # links of a listener that wait to be accepted


@pytest.fixture(params=[False, True], ids=["kernel address", "own address"])
def scene(lab: Lab, tmp_path: Path, request: Any) -> Iterator[Scene]:
    with scene_on(lab, sites_of(lab, tmp_path, request.param)) as made:
        yield made


@pytest.mark.quick_cases(1)
def test_garbage_hello_is_closed_and_counted(scene: Scene) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    texts = [
        draw.randbytes(80),
        draw.randbytes(4000),
        b"GET / HTTP/1.1\r\nHost: 10.77.0.1\r\nUser-Agent: something longer than a hello\r\n\r\n"
        * 2,
        bytes(80),
        b"HARP" + draw.randbytes(76),
        hello(draw.randbytes(16)),  # a hello without the token
        hello(token_of(scene)[:15] + bytes([token_of(scene)[15] ^ 1])),  # with nearly the token
        hello(token_of(scene), flow=1, flows=1),  # with the token, but invalid fields
        hello(token_of(scene), flow=0, flows=0),
        hello(token_of(scene), flow=16, flows=65535),
    ]
    for text in texts:
        with scene.unauthenticated_peer() as peer:
            assert peer.do("open 1")[0] == 1
            peer.do(f"send {text.hex()}")
            assert peer.wait_for_closes(1) == b"", f"{text[:8]!r} got an answer"
    assert scene.counted() == len(texts)
    scene.still_serves()


def test_wrong_hello_in_single_bytes_is_closed(scene: Scene) -> None:
    """A wrong hello in small pieces is rejected like a whole one."""
    with scene.unauthenticated_peer() as peer:
        peer.do("open 1")
        for byte in hello(bytes(16)):
            peer.do(f"send {byte:02x}")
        assert peer.wait_for_closes(1) == b""
    assert scene.counted() == 1
    scene.still_serves()


@pytest.mark.sanitized
@pytest.mark.slow
@pytest.mark.parametrize("scene", [False], ids=["kernel address"], indirect=True)
def test_incomplete_hello_times_out(scene: Scene) -> None:
    """A peer times out if it sends nothing, too little, only a FIN, or another version."""
    says = ["", f"send {hello(token_of(scene))[:79].hex()}", "finish",
            f"send {hello(token_of(scene), version=(8, 9)).hex()}"]  # fmt: skip
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(scene.unauthenticated_peer()) for _ in says]
        began = time.monotonic()
        for peer, command in zip(peers, says):
            assert peer.do("open 1")[0] == 1
            peer.do(command)
        scene.still_serves()  # while they are connected
        for peer in peers:
            peer.wait_for_closes(1, HELLO_TIMEOUT_S + 20)
        assert time.monotonic() - began > HELLO_TIMEOUT_S - 1
    assert scene.counted() == len(says)
    scene.still_serves()


def test_connections_opened_and_reset_do_not_disturb_listener(scene: Scene) -> None:
    """Port scanners do this."""
    with scene.unauthenticated_peer() as peer:
        for _ in range(5):
            peer.do("open 20")
            peer.do("reset")
    scene.still_serves()


# Connects with one hello after the other, each for its own link. Prints the numbers of accepted and
# rejected connections.
LINKS = """
import socket, sys
address, port, hello, count = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3]), 300
held = []
for number in range(count):
    one = socket.create_connection((address, port), 10)
    one.sendall(hello[:24] + (number + 1).to_bytes(8, "big") + hello[32:])
    held.append(one)
answers = []
for one in held:
    one.settimeout(10)
    try:
        answers.append(one.recv(64)[:4])
    except ConnectionResetError:
        answers.append(b"")
print(answers.count(b"harp"), answers.count(b""))
"""


@pytest.mark.parametrize("scene", [False], ids=["kernel address"], indirect=True)
def test_unaccepted_links_per_listener_are_bounded(scene: Scene) -> None:
    (port,) = struct.unpack("!H", scene.handle[8:10])
    begun = hello(token_of(scene), flows=2).hex()
    args = [sys.executable, "-c", LINKS, scene.listening.site.address, port, begun]
    assert scene.host.run(args, timeout=60).stdout == f"{LINKS_MOST} {300 - LINKS_MOST}\n"


def test_unauthenticated_connections_are_bounded(scene: Scene) -> None:
    """Any number of silent connections does not block a valid peer."""
    with scene.unauthenticated_peer() as flood:
        flood.do("open 600")
        scene.still_serves()
        flood.wait_for_closes(600 - ROOM)
    assert scene.counted() >= 600 - ROOM


@pytest.mark.parametrize("scene", [False], ids=["kernel address"], indirect=True)
def test_unauthenticated_connections_are_bounded_per_instance(scene: Scene) -> None:
    """Many connections at each of several listeners leave room for the instance's links."""
    handles = [scene.handle, *(bytes.fromhex(scene.listening.listen()[1]) for _ in range(2))]
    with contextlib.ExitStack() as stack:
        floods = [stack.enter_context(scene.unauthenticated_peer(handle)) for handle in handles]
        for flood in floods:
            flood.do("open 250")
        wait_until(
            lambda: sum(flood.do("state")[1] for flood in floods) >= 750 - ROOM,
            HELLO_TIMEOUT_S - 1.5, "all of them found a place",
        )  # fmt: skip
        scene.still_serves()


def test_unsupported_wire_version_is_answered(scene: Scene) -> None:
    """A peer with the token gets the reason, and the listener still serves."""
    with scene.unauthenticated_peer() as peer:
        peer.do("open 1")
        peer.do(f"send {hello(token_of(scene), version=(8, 9)).hex()}")

        def answered() -> bytes:
            return peer.do("state")[2]

        welcome = wait_until(answered, 20, "there was no answer")
        assert len(welcome) == 64 and welcome[:4] == b"harp"
        version, status = struct.unpack("!HH", welcome[4:8])
        assert (version, status) == (0, 93)  # EPROTONOSUPPORT
        scene.still_serves()


def test_duplicate_hello_is_closed(scene: Scene) -> None:
    """The second of two equal hellos is rejected; the first keeps its link."""
    with scene.unauthenticated_peer() as first, scene.unauthenticated_peer() as second:
        for peer in (first, second):
            peer.do("open 1")
            peer.do(f"send {hello(token_of(scene), flows=2).hex()}")
        second.wait_for_closes(1)
        first.do("state")  # reads the welcome, so that the next one sees a close behind it
        assert first.do("state")[0] == 1
    assert scene.counted() == 1
    scene.still_serves()


def test_hello_of_an_old_epoch_is_closed(scene: Scene) -> None:
    """The second of two equal hellos that replace a connection is rejected, as one that was under
    way for long. The connection that the first one has made stays."""
    with (
        scene.unauthenticated_peer() as first,
        scene.unauthenticated_peer() as second,
        scene.unauthenticated_peer() as third,
    ):
        for peer, epoch in ((first, 0), (second, 1), (third, 1)):
            peer.do("open 1")
            peer.do(f"send {hello(token_of(scene), flows=2, epoch=epoch).hex()}")
            answered = wait_until(lambda: any(peer.do("state")[1:]), 20, "there was no answer")
            assert answered
        third.wait_for_closes(1)
        second.do("state")  # reads the welcome, so that the next one sees a close behind it
        assert second.do("state")[0] == 1
    scene.still_serves()


def test_address_outside_peers_is_refused(lab: Lab, tmp_path: Path) -> None:
    """`peers` lists the allowed addresses: others are refused before they send a byte."""
    sites = [packet_site(tmp_path / str(host.index), host) for host in lab.hosts]
    sites[0].environment["HARP_PEERS"] = "10.77.0.64/26,10.77.1.0/24"
    with Rank(sites[0]) as listening, Rank(sites[1]) as other:
        listening.init()
        other.init()
        scene = Scene(listening, other, listening.listen(), lab.hosts[1])
        with scene.unauthenticated_peer() as peer:
            peer.do("open 3")
            peer.wait_for_closes(3)
        (process,) = sites[0].published()
        assert process.totals["tcp_peer_refused"] == 3
        with pytest.raises(Failed):
            other.connect(listening.listen()[1])
        (warning,) = other.warnings
        assert "did the peer's process end? If it runs, its `peers`" in warning


POSTED_S = 0.5  # seconds until a receive is posted, on a busy machine
SIZE = 4096  # of the message that contradictory chunks describe
TEXT = bytes(i % 251 for i in range(SIZE))  # what the rank expects in its message 0


def chunk(
    flow: int, begin: int, end: int, last: bool = False, sent: int = SIZE
) -> tuple[int, bytes]:
    """A chunk of message 0 on one of two flows, with at most `sent` bytes of its payload."""
    header = struct.pack("!QQIBBH", 0, begin, end - begin, 1, int(last), 0)
    return flow, header + TEXT[begin:end][:sent]


CONTRADICTIONS = {
    "bytes that are still coming in over another flow": [
        chunk(0, 0, SIZE, sent=1000), chunk(1, 0, SIZE, last=True), (0, TEXT[1000:])],
    "bytes that have come": [
        chunk(0, 0, 1024), chunk(1, 0, 1024), chunk(0, 2048, SIZE, last=True)],
    "bytes beyond the size": [
        chunk(0, 2048, SIZE, sent=1000), chunk(1, 0, 2048, last=True), (0, TEXT[3048:])],
    "bytes beyond a size that comes after them": [
        chunk(0, 2048, SIZE), chunk(1, 0, 2048, last=True)],
    "a size twice": [
        chunk(0, 2048, SIZE, last=True), chunk(1, 2048, SIZE, last=True)],
    "two sizes": [
        chunk(0, 2048, SIZE, last=True), chunk(1, 0, 2048, last=True)],
    "an end before the beginning": [
        (0, struct.pack("!QQIBBH", 0, 2**64 - 1, 2, 1, 1, 0) + TEXT[:2])],
    "nothing, in the middle": [chunk(0, 0, 1024), chunk(1, 1024, 1024)],
}  # fmt: skip


@contextlib.contextmanager
def both_flows(scene: Scene) -> Iterator[tuple[int, list[UnauthenticatedPeer]]]:
    """A peer with the token opens a link of two flows. Yields the rank's link number and the
    flows."""
    with scene.unauthenticated_peer() as first, scene.unauthenticated_peer() as second:
        for number, peer in enumerate((first, second)):
            peer.do("open 1")
            peer.do(f"send {hello(token_of(scene), flow=number, flows=2).hex()}")
        yield scene.listening.accept(scene.listener[0]), [first, second]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("scene", [False], ids=["kernel address"], indirect=True)
@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictory_chunks_fail_link(scene: Scene, case: str) -> None:
    """The link fails, and HARP does not write to the memory of a completed message: the rank unmaps
    it at once, so a write would crash it."""
    rank = scene.listening
    with both_flows(scene) as (link, flows):
        rank.start("receive", link, 1, SIZE, 20_000)
        time.sleep(POSTED_S)  # else the flows wait for the receive, and go on in any order
        for flow, sent in CONTRADICTIONS[case]:
            flows[flow].do(f"send {sent.hex()}")
        with pytest.raises(Failed) as failure:
            rank.finish()
        assert failure.value.call == "test"
        (warning,) = rank.warnings
        assert "contradicts the others" in warning or "overlap" in warning, warning


@pytest.mark.parametrize("scene", [False], ids=["kernel address"], indirect=True)
def test_chunk_of_finished_message_fails_link(scene: Scene) -> None:
    rank = scene.listening
    with both_flows(scene) as (link, flows):
        rank.start("receive", link, 1, SIZE, 20_000)
        time.sleep(POSTED_S)
        for flow, sent in (chunk(0, 0, 1000), chunk(1, 1000, SIZE, last=True)):
            flows[flow].do(f"send {sent.hex()}")
        rank.finish()
        flows[0].do(f"send {chunk(0, 0, 1000)[1].hex()}")
        with pytest.raises(Failed):
            rank.do("receive", link, 1, SIZE, 20_000)
        assert "contradicts the others" in rank.warnings[0]


@pytest.mark.parametrize("scene", [False], ids=["kernel address"], indirect=True)
def test_duplicate_hello_of_accepted_link_is_closed(scene: Scene) -> None:
    """It opens no second link that could replace the first one."""
    with both_flows(scene), scene.unauthenticated_peer() as third:
        third.do("open 1")
        third.do(f"send {hello(token_of(scene), flow=0, flows=2).hex()}")
        assert third.wait_for_closes(1) == b""
    assert scene.counted() == 1


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("scene", [False], ids=["kernel address"], indirect=True)
def test_trace_has_length_of_rejected_hello(scene: Scene) -> None:
    """A hello without the token, and one for a flow that is open."""
    rank = scene.listening
    rejected = [hello(bytes(16)), hello(token_of(scene), flow=0, flows=2)]
    with both_flows(scene) as (link, flows):
        for text in rejected:
            with scene.unauthenticated_peer() as peer:
                peer.do("open 1")
                peer.do(f"send {text.hex()}")
                peer.wait_for_closes(1)
        rank.start("receive", link, 1, SIZE, 20_000)
        flows[0].do("send " + bytes(24).hex())  # a chunk of no type: the link fails
        with pytest.raises(Failed):
            rank.finish()
    folder = rank.site.run_folder
    path = wait_until(lambda: list(folder.glob("*.trace")), 10, "no trace was written")[0]
    records = [one for one in trace.read(path).records if one.event == "unauthenticated"]
    assert [one.values["length"] for one in records] == [len(text) for text in rejected]
    assert [one.values["peer_address"] for one in records] == [scene.other.site.address] * 2
