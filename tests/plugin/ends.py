# SPDX-License-Identifier: Apache-2.0
"""The two ends of a connection, as conformance tests use them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from nccl_plugin import INTERNAL_ERROR
from pairs import NOTICED_MS, Pair
from plugin_peer import Peer, PeerFailure


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

    def close(self) -> float:
        """Closes the comm. Returns the duration in ms."""
        return self.rank.close(comm=self.comm)


def ends_between(
    one: Peer, other: Peer, size: int, seed: Any = None, devices: tuple[int, int] = (0, 0)
) -> tuple[End, End]:
    """Connects one rank to the other by these devices; connect is called before accept. Each end
    has a buffer, and the sender's holds the seed's pattern."""
    listening = other.listen(device=devices[1])
    sends = one.connect(handle=listening["handle"], device=devices[0])["comm"]
    assert sends, "connect did not come through"
    receives = other.accept(listener=listening["listener"])["comm"]
    assert receives, "accept did not come through"
    other.close_listener(listener=listening["listener"])
    return End.of(one, sends, size, seed), End.of(other, receives, size)


def ends(pair: Pair, size: int, seed: Any = None) -> tuple[End, End]:
    """Connects the pair's rank a to rank b."""
    return ends_between(pair.a, pair.b, size, seed)


def sizes(outcomes: list[dict[str, Any]]) -> list[Any]:
    assert all(outcome["error"] is None for outcome in outcomes), outcomes
    return [outcome["size"] for outcome in outcomes]


def move(sender: End, receiver: End, size: int, seed: Any) -> None:
    """Sends a message and checks it; the sender's buffer holds the seed's pattern."""
    request = receiver.receive(size)
    sent = sender.rank.start("wait", requests=[sender.send(size)])
    # A thread of its own, since sender and receiver may be the same rank.
    assert sizes(receiver.rank.wait(requests=[request], thread="receiver")) == [size]
    assert sizes(sent.result(timeout=20)) == [size]
    assert receiver.holds(size, seed)


def refuse_devices(rank: Peer, handle: str, devices: Iterable[int]) -> None:
    """Checks that a rank refuses device numbers, to connect by a peer's handle, too."""
    for device in devices:
        for call, more in (("properties", {}), ("listen", {}), ("connect", {"handle": handle})):
            with pytest.raises(PeerFailure) as failure:
                getattr(rank, call)(device=device, **more)
            assert failure.value.code == INTERNAL_ERROR, (call, device)


def errors_of(rank: Peer, requests: list[int], timeout: float) -> list[Any]:
    return [outcome["error"] for outcome in rank.wait(requests=requests, timeout=timeout)]


def first_error(end: End, post: Callable[[], int]) -> Any:
    """Posts until a post or its request fails. Returns NCCL's code; None: no failure in time.
    Data that was sent before the other side ended may still arrive."""
    deadline = time.monotonic() + NOTICED_MS / 1e3
    error = None
    while error is None and time.monotonic() < deadline:
        try:
            (error,) = errors_of(end.rank, [post()], NOTICED_MS / 1e3)
        except PeerFailure as failure:
            error = failure.code
    return error


def stream(
    sender: End, receiver: End, count: int, size: int, seed: int = 9, outstanding: int = 8
) -> list[Any]:
    """Starts a stream of messages between both ends, each end on a thread of its own. Returns
    futures of the two outcomes."""
    shape = {"count": count, "size": size, "seed": seed, "outstanding": outstanding}
    return [
        end.rank.start("stream", comm=end.comm, sends=end is sender, thread=name, **shape)
        for end, name in ((receiver, f"receives {seed}"), (sender, f"sends {seed}"))
    ]


def all_through(outcomes: list[Any], count: int) -> None:
    """Waits for streams, and checks that all messages arrived unchanged."""
    for outcome in outcomes:
        found = outcome.result(timeout=60)
        assert (found["done"], found["wrong"], found["error"]) == (count, 0, None), found


def flowing(ranks: list[Peer], least: int) -> None:
    """Waits until the streams of each rank have completed at least this number of messages."""
    deadline = time.monotonic() + 20
    while min(rank.messages() for rank in ranks) < least:
        assert time.monotonic() < deadline, [rank.messages() for rank in ranks]
        time.sleep(0.005)
