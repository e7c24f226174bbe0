# SPDX-License-Identifier: Apache-2.0
"""A network device with offloads in Python, around a FlowStack.

A `FlowHost` is an end of a `Wire`, like a stack. It completes checksums, cuts TSO segments into
frames, and passes received frames on in bursts, merged (LRO) or in pieces.
"""

from __future__ import annotations

import random
import struct

from harp.testing._flow import Flow, FlowStack, TxFrame
from harp.testing.frames import ACK, FIN, IPPROTO_TCP, PSH, check_frame, checksum
from harp.testing.wire import Wire, WireError, pattern

ETHERNET_HEADER = 14


def _pseudo(ip: bytes, length: int) -> bytes:
    return ip[12:20] + struct.pack("!BBH", 0, IPPROTO_TCP, length)


def _complete(header: bytearray, payload: bytes, link: int, tcp: int) -> bytes:
    """Sets the IP length and both checksums."""
    header[link + 2 : link + 4] = struct.pack("!H", len(header) - link + len(payload))
    header[link + 10 : link + 12] = b"\0\0"
    header[link + 10 : link + 12] = struct.pack("!H", checksum(bytes(header[link:tcp])))
    header[tcp + 16 : tcp + 18] = b"\0\0"
    body = bytes(header[tcp:]) + payload
    total = checksum(_pseudo(bytes(header[link:]), len(body)) + body)
    header[tcp + 16 : tcp + 18] = struct.pack("!H", total)
    return bytes(header) + payload


def finish(frame: TxFrame, link: int) -> list[bytes]:
    """The frames that a device puts on the wire for one frame of the stack.

    Raises WireError if the frame's offload data is wrong: the checksum field must
    hold the pseudo-header's sum, and the offsets must be right.
    """
    if not frame.checksum_needed:
        if frame.segment_size:
            raise WireError("a large segment without checksum_needed")
        return [frame.data]
    tcp = link + 20
    if (frame.checksum_start, frame.checksum_offset) != (tcp, 16):
        raise WireError(f"checksum at {frame.checksum_start} + {frame.checksum_offset}")
    partial = struct.unpack_from("!H", frame.data, tcp + 16)[0]
    pseudo = _pseudo(frame.data[link:], len(frame.data) - tcp)
    if (0xFFFF - checksum(pseudo)) % 0xFFFF != partial % 0xFFFF:
        raise WireError(f"the checksum field holds {partial:#06x}, not the pseudo-header's sum")
    header, payload = frame.data[: frame.header_length], frame.data[frame.header_length :]
    size = frame.segment_size or max(len(payload), 1)
    if frame.segment_size and len(payload) <= size:
        raise WireError(f"segment_size {size} for {len(payload)} bytes")
    return [
        _cut(header, payload[at : at + size], at, link, at + size >= len(payload))
        for at in range(0, max(len(payload), 1), size)
    ]


def _cut(header: bytes, payload: bytes, at: int, link: int, last: bool) -> bytes:
    tcp = link + 20
    own = bytearray(header)
    seq = (struct.unpack_from("!I", header, tcp + 4)[0] + at) % (1 << 32)
    own[tcp + 4 : tcp + 8] = struct.pack("!I", seq)
    if not last:
        own[tcp + 13] &= ~(FIN | PSH) & 0xFF
    return _complete(own, payload, link, tcp)


class FlowHost:
    """A FlowStack with its device, for harp.testing.wire.Wire.

    split: the pieces of received frames: "whole", "headers" (payload in a second
    piece), "anywhere" (cut at a random place after the IP header). merge: join
    consecutive segments up to this number of bytes (0: never). refuse: the
    device's queue accepts this number of frames a burst (0: any number).
    """

    def __init__(
        self, stack: FlowStack, *, ethernet: bool = False, split: str = "whole", merge: int = 0,
        refuse: int = 0, seed: int = 1,
    ) -> None:  # fmt: skip
        self.stack = stack
        self.address = stack.address
        self.ethernet = ethernet
        self.link = ETHERNET_HEADER if ethernet else 0
        self.split = split
        self.merge = merge
        self.refuse = refuse
        self.merged = 0
        self._random = random.Random(seed)
        self._burst: list[bytes] = []

    def advance(self, now: int) -> None:
        self._receive()
        self._refill()
        self.stack.advance(now)

    def next_deadline(self) -> int | None:
        return self.stack.next_deadline()

    def input(self, frame: bytes) -> bool:
        self._burst.append(frame)
        return True

    def take(self) -> list[bytes]:
        self._receive()
        return [wire for frame in self.stack.take() for wire in finish(frame, self.link)]

    def _refill(self) -> None:
        if self.refuse:
            self.stack.room = self.refuse

    def _receive(self) -> None:
        if not self._burst:
            return
        self._refill()
        burst, self._burst = self._burst, []
        while burst:
            frame, segment_size = self._next(burst)
            at = self._place(frame)
            # A merged segment has no checksum of its own, so the device must report it as good.
            self.stack.receive(frame[:at], frame[at:], segment_size, bool(segment_size))
        self.stack.flush()

    def _place(self, frame: bytes) -> int:
        least = self.link + 20
        if self.split == "whole" or len(frame) <= least + 20:
            return len(frame)
        if self.split == "headers":
            return least + (frame[least + 12] >> 4) * 4
        return self._random.randrange(least, len(frame) + 1)

    def _next(self, burst: list[bytes]) -> tuple[bytes, int]:
        frame = burst.pop(0)
        if not self.merge or not self._mergeable(frame):
            return frame, 0
        head = self.link + 20 + (frame[self.link + 32] >> 4) * 4
        size = len(frame) - head
        joined, last = frame[head:], size
        while burst and last == size and len(joined) + size <= self.merge:
            following = burst[0]
            if not self._follows(frame, len(joined), following, head):
                break
            burst.pop(0)
            last = len(following) - head
            joined += following[head:]
        if len(joined) == size:
            return frame, 0
        self.merged += 1
        return _complete(bytearray(frame[:head]), joined, self.link, self.link + 20), size

    def _mergeable(self, frame: bytes) -> bool:
        at = self.link
        if len(frame) < at + 40 or frame[at] != 0x45 or frame[at + 9] != IPPROTO_TCP:
            return False
        try:
            segment = check_frame(frame, self.ethernet)
        except AssertionError:
            return False  # the wire has corrupted it
        return segment is not None and segment.flags & ~PSH == ACK and bool(segment.payload)

    def _follows(self, frame: bytes, length: int, following: bytes, head: int) -> bool:
        if not self._mergeable(following):
            return False
        tcp = self.link + 20
        seq = struct.unpack_from("!I", frame, tcp + 4)[0] + length
        same = following[self.link + 12 : tcp + 4] == frame[self.link + 12 : tcp + 4]
        return (
            same
            and struct.unpack_from("!I", following, tcp + 4)[0] == seq % (1 << 32)
            and following[tcp + 8 : tcp + 13] == frame[tcp + 8 : tcp + 13]
            and following[tcp + 20 : head] == frame[tcp + 20 : head]
        )


class FlowTransfer:
    """Sends `size` bytes from one flow to another in pieces and verifies every byte.

    pieces: the sizes of the references, used in turn. every: mark the end of a
    segment after each `every`-th piece (0: never). appetite: the bytes that the
    receiver takes once each pause_ns (0: all at once).
    """

    def __init__(
        self, source: Flow, sink: Flow, size: int, *, pieces: tuple[int, ...] = (16, 5000),
        every: int = 0, appetite: int = 0, pause_ns: int = 100_000, close: bool = True,
    ) -> None:  # fmt: skip
        self.source, self.sink, self.size = source, sink, size
        self.appetite, self.pause_ns, self.close = appetite, pause_ns, close
        self.verified = 0
        self._closing = False
        self._eat_at = 0
        if appetite:
            sink.limit = 0
        at = count = 0
        while at < size:
            part = min(pieces[count % len(pieces)], size - at)
            count += 1
            source.to_pull.append((pattern(at, part), bool(every) and count % every == 0))
            at += part
        source.ready()

    def __repr__(self) -> str:
        return f"<flow of {self.size}: {self.source.acked} acked, {self.verified} verified>"

    @property
    def done(self) -> bool:
        return self.verified == self.size and self.source.acked == self.size

    def wakes(self) -> int | None:
        return self._eat_at if self.appetite and self.verified < self.size else None

    def step(self, now: int) -> bool:
        moved = False
        if self.appetite and now >= self._eat_at and self.sink.closed is None:
            self._eat_at = now + self.pause_ns
            self.sink.limit = (self.sink.limit or 0) + self.appetite
            self.sink.resume()
        have = len(self.sink.received)
        if have > self.verified:
            if self.sink.received[self.verified : have] != pattern(
                self.verified, have - self.verified
            ):
                raise WireError(f"wrong bytes between {self.verified} and {have}")
            self.verified = have
            moved = True
        if self.close and not self._closing and not self.source.to_pull:
            self._closing = moved = True
            self.source.close()
        return moved


def connect_flows(wire: Wire, a: FlowHost, b: FlowHost, port: int = 7000) -> tuple[Flow, Flow]:
    """(flow on a, flow on b), connected over `wire`."""
    listener = b.stack.listen(port)
    flow = a.stack.connect(b.address, port)
    wire.run(until=lambda: flow.established and bool(listener.accepted), limit_s=200)
    listener.close()
    return flow, listener.accepted[0]
