# SPDX-License-Identifier: Apache-2.0
"""A network of two stacks in virtual time: the same seed gives the same run, to the byte.

wire = Wire(a, b, delay_ns=50_000, impair=Impairment(drop=0.01, seed=7))
transfer = Transfer(client, server, 1 << 20)
wire.run([transfer])
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harp.observe.pcapng import write_pcapng
from harp.testing import _fault
from harp.testing._stack import Socket, Stack
from harp.testing.frames import BadFrame, check_frame

SECOND_NS = 1_000_000_000
_EPOCH_NS = 1_000_000_000_000

# The copies of a frame that an impairment lets through, each with an extra delay in ns. An empty
# list drops the frame.
Impair = Callable[[bytes], "list[tuple[int, bytes]]"]


def unharmed(frame: bytes) -> list[tuple[int, bytes]]:
    """The impairment of a perfect wire."""
    return [(0, frame)]


class WireError(AssertionError):
    """A run failed: it stalled, took too long, or produced a bad frame or byte."""


class Host(Protocol):
    """An end of a wire: a Stack, or a stack with a device around it."""

    def advance(self, now_ns: int, /) -> None: ...

    def next_deadline(self) -> int | None: ...

    def input(self, frame: bytes, /) -> bool: ...

    def take(self) -> list[bytes]: ...


class App(Protocol):
    """An application on the wire: `step` does all that is possible now, `done` tells the end."""

    def step(self, now: int) -> bool:
        """Returns whether anything moved. now: the wire's time, ns."""
        ...

    def wakes(self) -> int | None:
        """The time (ns) of the next step that needs no arriving frame; None: never."""
        ...

    @property
    def done(self) -> bool: ...


@dataclass
class Impairment:
    """The fault port's random faults, each with its probability a frame, from one seed.

    reorder delays a frame by up to reorder_ns. corrupt flips one bit of the frame.
    burst is the number of consecutive frames that a loss drops.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    burst: int = 1
    reorder_ns: int = 500_000
    seed: int = 1
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lane = _fault.Lane(
            f"drop={self.drop},drop_burst={self.burst},duplicate={self.duplicate},"
            f"reorder={self.reorder},corrupt={self.corrupt},seed={self.seed}"
        )

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def __call__(self, frame: bytes) -> list[tuple[int, bytes]]:
        verdict = self._lane.judge(frame)
        copies = self._copy(frame, verdict)
        if copies and verdict.duplicate:
            self._count("duplicate")
            copies += self._copy(frame, self._lane.judge(frame))
        return copies

    def _copy(self, frame: bytes, verdict: _fault.Verdict) -> list[tuple[int, bytes]]:
        if verdict.drop:
            self._count("drop")
            return []
        if verdict.corrupt:
            self._count("corrupt")
            frame = _fault.corrupted(frame, verdict.choice)
        if not verdict.late:
            return [(0, frame)]
        self._count("reorder")
        return [(verdict.choice % self.reorder_ns, frame)]


@dataclass
class _End:
    stack: Host
    impair: Impair
    free_at: int = 0  # ns; the transmitter's queue is empty then


class Wire:
    """Joins two stacks.

    delay_ns: one way. rate_bps: of each direction, 0: unlimited. queue: the most
    frames waiting for a limited wire (tail drop). impair, impair_back: the
    impairments of frames from a and from b; impair alone applies to both.
    mtu: the largest frame, in bytes. capture: keep frames for `save`.
    """

    def __init__(
        self,
        a: Host,
        b: Host,
        *,
        delay_ns: int = 50_000,
        rate_bps: int = 0,
        queue: int = 1000,
        impair: Impair | None = None,
        impair_back: Impair | None = None,
        mtu: int = 1500,
        ethernet: bool = False,
        capture: bool = False,
    ) -> None:
        forward = impair or unharmed
        self.ends = (_End(a, forward), _End(b, impair_back or forward))
        self.delay_ns = delay_ns
        self.rate_bps = rate_bps
        self.queue = queue
        self.mtu = mtu
        self.ethernet = ethernet
        self.queue_drops = 0
        self.frames = 0
        self.now = _EPOCH_NS
        self._flying: list[tuple[int, int, int, bytes]] = []
        self._order = 0
        self.capture: list[tuple[int, bool, bytes]] | None = [] if capture else None
        for end in self.ends:
            end.stack.advance(self.now)

    @property
    def elapsed_ns(self) -> int:
        """Virtual time since the wire was made."""
        return self.now - _EPOCH_NS

    def _collect(self, index: int) -> bool:
        end = self.ends[index]
        frames = end.stack.take()
        for frame in frames:
            self._launch(index, end, frame)
        return bool(frames)

    def _launch(self, index: int, end: _End, frame: bytes) -> None:
        self.frames += 1
        if self.capture is not None:
            self.capture.append((self.now, index == 0, frame))
        try:
            check_frame(frame, self.ethernet, self.mtu)
        except BadFrame as wrong:
            who = "ab"[index]
            raise WireError(f"stack {who} sent a bad frame: {wrong}: {frame.hex()}") from None
        leaves = self.now
        if self.rate_bps:
            takes = len(frame) * 8 * SECOND_NS // self.rate_bps
            if end.free_at - self.now > self.queue * takes:
                self.queue_drops += 1
                return
            end.free_at = leaves = max(end.free_at, self.now) + takes
        for late, copy in end.impair(frame):
            self._order += 1
            heapq.heappush(
                self._flying, (leaves + self.delay_ns + late, self._order, 1 - index, copy)
            )

    def _next_event(self, apps: Sequence[App]) -> int | None:
        times = [end.stack.next_deadline() for end in self.ends] + [app.wakes() for app in apps]
        if self._flying:
            times.append(self._flying[0][0])
        known = [t for t in times if t is not None]
        return min(known) if known else None

    def step(self, apps: Sequence[App] = ()) -> bool:
        """Advances to the next event and handles it. False if there is none."""
        event = self._next_event(apps)
        if event is None:
            return False
        self.now = max(self.now, event)
        for end in self.ends:
            end.stack.advance(self.now)
        while self._flying and self._flying[0][0] <= self.now:
            _, _, target, frame = heapq.heappop(self._flying)
            self.ends[target].stack.input(frame)
        self.flush()
        return True

    def flush(self) -> None:
        """Puts the stacks' new frames on the wire."""
        self._collect(0)
        self._collect(1)

    def run(
        self,
        apps: Sequence[App] = (),
        *,
        until: Callable[[], bool] | None = None,
        limit_s: float = 600.0,
    ) -> int:
        """Runs until every app is done (or `until` is true). Returns the virtual ns it took.

        Raises WireError if no event is left before that, or after limit_s virtual
        seconds. Without apps and `until` it runs until no event is left.
        """
        began = self.now
        limit = began + round(limit_s * SECOND_NS)
        stuck = 0
        while True:
            while any([app.step(self.now) for app in apps]):  # a list: each gets its step
                self.flush()
            self.flush()
            if apps and until is None and all(app.done for app in apps):
                return self.now - began
            if until is not None and until():
                return self.now - began
            before = self.now
            if not self.step(apps):
                if apps or until is not None:
                    raise WireError(f"stalled after {self.elapsed_ns / 1e9:.6f} s: {apps}")
                return self.now - began
            stuck = stuck + 1 if self.now == before else 0
            if stuck > 100_000:
                raise WireError(f"time stands still at {self.elapsed_ns / 1e9:.6f} s")
            if self.now > limit:
                raise WireError(f"not done after {limit_s} virtual seconds: {apps}")

    def save(self, path: Path) -> None:
        """Writes the capture as pcapng, a's frames as outbound."""
        write_pcapng(path, self.capture or (), self.ethernet)


_PATTERN_PERIOD = 65_521  # a prime, so that a shift by any power of two is visible
_PATTERN = random.Random(9293).randbytes(_PATTERN_PERIOD) * 2


def pattern(offset: int, size: int) -> bytes:
    """The bytes at `offset` of a pseudo-random stream, so that misplaced bytes are visible."""
    parts = []
    while size > 0:
        at = offset % _PATTERN_PERIOD
        take = min(size, _PATTERN_PERIOD)
        parts.append(_PATTERN[at : at + take])
        offset += take
        size -= take
    return b"".join(parts)


class Transfer:
    """Sends `size` bytes from one connected socket to another and verifies each.

    shut: the sender shuts its side down after the last byte, and the receiver must
    see the end of the stream there. chunk: bytes for each call of send.
    read_every_ns: a slow reader, with one recv of read_size bytes in this time.
    """

    def __init__(
        self,
        source: Socket,
        sink: Socket,
        size: int,
        *,
        shut: bool = True,
        chunk: int = 65536,
        read_every_ns: int = 0,
        read_size: int = 65536,
    ) -> None:
        self.source = source
        self.sink = sink
        self.size = size
        self.chunk = chunk
        self.shut = shut
        self.sent = 0
        self.received = 0
        self.ended = False
        self.read_every_ns = read_every_ns
        self.read_size = read_size
        self._shut_done = False
        self._read_at = 0

    def __repr__(self) -> str:
        return f"<transfer of {self.size}: {self.sent} sent, {self.received} received>"

    @property
    def done(self) -> bool:
        return self.received == self.size and (self.ended or not self.shut)

    def wakes(self) -> int | None:
        return self._read_at if self.read_every_ns and not self.done else None

    def step(self, now: int) -> bool:
        moved = self._send()
        if self.read_every_ns and now < self._read_at:
            return moved
        self._read_at = now + self.read_every_ns
        return self._receive() or moved

    def _send(self) -> bool:
        moved = False
        while self.sent < self.size:
            piece = pattern(self.sent, min(self.chunk, self.size - self.sent))
            try:
                self.sent += self.source.send(piece)
            except BlockingIOError:
                return moved
            moved = True
        if self.shut and not self._shut_done:
            self.source.shutdown(1)
            self._shut_done = moved = True
        return moved

    def _receive(self) -> bool:
        moved = False
        while not self.ended:
            try:
                data = self.sink.recv(self.read_size)
            except BlockingIOError:
                return moved
            moved = True
            if not data:
                self._end()
                return moved
            if data != pattern(self.received, len(data)):
                self._complain(data)
            self.received += len(data)
            if self.read_every_ns:
                break
        return moved

    def _end(self) -> None:
        self.ended = True
        if self.received != self.size:
            raise WireError(f"the stream ended after {self.received} of {self.size} bytes")

    def _complain(self, data: bytes) -> None:
        want = pattern(self.received, len(data))
        first = next(i for i, (x, y) in enumerate(zip(data, want)) if x != y)
        raise WireError(f"byte {self.received + first} of the stream is wrong")


def connect_pair(
    wire: Wire, port: int = 5001, *, before: Callable[[Socket], None] | None = None
) -> tuple[Socket, Socket]:
    """(client on a, server on b), connected; `before` may set options on both and the listener."""
    a, b = wire.ends[0].stack, wire.ends[1].stack
    assert isinstance(a, Stack) and isinstance(b, Stack)
    listener = b.socket()
    client = a.socket()
    if before is not None:
        before(listener)
        before(client)
    listener.bind(("0.0.0.0", port))
    listener.listen(8)
    client.connect_ex((b.address, port))
    wire.run(until=lambda: bool(listener.poll() & 1) and bool(client.poll() & 4), limit_s=200)
    server, _ = listener.accept()
    listener.close()
    return client, server
