# SPDX-License-Identifier: Apache-2.0
"""The end of a link whose flows close one by one, early, or before their bytes were received. The
sending peer is a script over the other host's kernel TCP, which controls the order of events."""

from __future__ import annotations

import signal
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from ranks import REMOTE_ERROR, Failed, connect, wait_until
from unauthenticated_peers import (
    Scene,
    UnauthenticatedPeer,
    hello,
    scene_on,
    sites_of,
    token_of,
)

from tools.hosts.lab import Lab

TIMEOUT_MS = 1500
SIZE = 4096
TEXT = bytes(i % 251 for i in range(SIZE))  # what the rank expects in its message 0


def message(number: int, payload: bytes) -> bytes:
    """A message in one chunk. The rank expects byte j of message i to be (i + j) % 251."""
    return struct.pack("!QQIBBH", number, 0, len(payload), 1, 1, 0) + payload


@pytest.fixture
def scene(lab: Lab, tmp_path: Path) -> Iterator[Scene]:
    with scene_on(lab, sites_of(lab, tmp_path, timeout_ms=TIMEOUT_MS)) as made:
        yield made


@contextmanager
def flows(scene: Scene, count: int) -> Iterator[list[UnauthenticatedPeer]]:
    """The flows of one link, each after its hello."""
    with ExitStack() as stack:
        made = [stack.enter_context(scene.unauthenticated_peer()) for _ in range(count)]
        for number, peer in enumerate(made):
            peer.do("open 1")
            peer.do(f"send {hello(token_of(scene), flow=number, flows=count).hex()}")
        yield made


def payload_in(scene: Scene) -> int:
    (process,) = scene.listening.site.published()
    return process.totals["tcp_payload_in"]


def stored(scene: Scene, size: int) -> None:
    """Waits until `size` bytes of the peer's payload have arrived, including the hello."""
    wait_until(lambda: payload_in(scene) >= size, 20, "the message did not come")


def test_fin_of_one_flow_keeps_other_flows_open(scene: Scene) -> None:
    rank = scene.listening
    with flows(scene, 2) as (first, second):
        link = rank.accept(scene.listener[0])
        rank.start("receive", link, 1, SIZE, 20_000)
        first.do("finish")
        time.sleep(0.3)  # the FIN has arrived and must not end the link
        second.do(f"send {message(0, TEXT).hex()}")
        rank.finish()
        rank.start("receive", link, 1, SIZE, 20_000)
        second.do("finish")
        with pytest.raises(Failed) as failure:  # no flow is left that could bring the message
            rank.finish()
        assert failure.value.code == REMOTE_ERROR


@pytest.mark.parametrize("payload", [b"", TEXT], ids=["empty", "whole"])
def test_last_message_before_fin_waits_for_receive(scene: Scene, payload: bytes) -> None:
    """A FIN follows the message. An empty message has only a header."""
    rank = scene.listening
    with flows(scene, 1) as (flow,):
        link = rank.accept(scene.listener[0])
        flow.do(f"send {message(0, payload).hex()}")
        flow.do("finish")
        stored(scene, 80 + 24 + len(payload))
        time.sleep(0.3)
        rank.do("receive", link, 1, len(payload), 20_000)
        with pytest.raises(Failed) as failure:
            rank.do("receive", link, 1, SIZE, 20_000)
        assert failure.value.code == REMOTE_ERROR
        assert failure.value.ms < TIMEOUT_MS  # immediately, not by a timeout
        (warning,) = rank.warnings
        assert "the peer has closed it" in warning


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("size", [0, SIZE], ids=["empty", "whole"])
@pytest.mark.parametrize(
    "leaves",
    [pytest.param(False, id="stays", marks=pytest.mark.slow), pytest.param(True, id="exits")],
)
def test_receive_posted_after_sender_closed_succeeds(scene: Scene, leaves: bool, size: int) -> None:
    """The sender closed more than timeout_ms ago. The acknowledged message is still there, and
    neither side warns."""
    link = connect(scene.other, scene.listening, scene.listener)
    scene.other.do("send", link.sends, 1, size, 20_000)
    scene.other.do("close", link.sends)
    if leaves:
        scene.other.start("exit")
        scene.other.wait()
    time.sleep(1.3 * TIMEOUT_MS / 1e3)
    scene.listening.do("receive", link.receives, 1, size, 20_000)
    time.sleep(0.5)
    scene.listening.do("close", link.receives)
    assert scene.listening.warnings == []
    assert scene.other.warnings == []


@pytest.mark.parametrize("size", [0, SIZE], ids=["empty", "whole"])
def test_sender_finalize_with_stopped_receiver_loses_nothing(scene: Scene, size: int) -> None:
    """The message was acknowledged. A FIN follows, and then a reset, because the stopped receiver
    does not answer."""
    link = connect(scene.other, scene.listening, scene.listener)
    link.move()
    before = payload_in(scene)
    scene.other.do("send", link.sends, 1, size, 20_000)
    stored(scene, before + 24 + size)
    time.sleep(0.1)
    scene.listening.signal(signal.SIGSTOP)
    scene.other.do("close", link.sends)
    scene.other.do("finalize")
    time.sleep(0.5)
    scene.listening.signal(signal.SIGCONT)
    time.sleep(0.3)
    scene.listening.do("receive", link.receives, 1, size, 20_000)
    assert scene.listening.warnings == []


def test_accept_fails_when_second_flow_never_opens_after_reset(scene: Scene) -> None:
    """The peer died after the first of two flows."""
    rank = scene.listening
    with scene.unauthenticated_peer() as first:
        first.do("open 1")
        first.do(f"send {hello(token_of(scene), flow=0, flows=2).hex()}")
        wait_until(lambda: len(first.do("state")[2]) == 64, 20, "there was no welcome")
        first.do("reset")
        with pytest.raises(Failed) as failure:
            rank.accept(scene.listener[0], 3 * TIMEOUT_MS)
        assert failure.value.call == "accept"
        (warning,) = rank.warnings
        assert "the link from" in warning
    scene.still_serves(warnings=1)


def test_accept_times_out_when_second_flow_never_opens(scene: Scene) -> None:
    """The peer never opens its other flow."""
    rank = scene.listening
    with scene.unauthenticated_peer() as first:
        first.do("open 1")
        first.do(f"send {hello(token_of(scene), flow=0, flows=2).hex()}")
        with pytest.raises(Failed) as failure:
            rank.accept(scene.listener[0], 3 * TIMEOUT_MS)
        assert failure.value.call == "accept"
        (warning,) = rank.warnings
        assert "1 of 2 flows" in warning
        first.wait_for_closes(1)
