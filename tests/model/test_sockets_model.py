# SPDX-License-Identifier: Apache-2.0
"""The socket-like calls against a model: byte streams that are sent, received, ended and reset.

hypothesis makes up calls, losses and delays on both sides; what the model does not allow fails and
is reduced to the shortest sequence of calls that shows it.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from harp.testing._stack import Socket
from harp.testing.dialogue import make_stack
from harp.testing.tcp_info import state_name
from harp.testing.wire import Wire, connect_pair, pattern

CONFIG = {
    "timestamps": 1,
    "window_scale": 2,
    "sndbuf": 8192,
    "rcvbuf": 6000,
    "packets": 512,
    "max_connections": 64,
    "rto_min_us": 5_000,
    "delayed_ack_us": 1_000,
}
RESET = (errno.ECONNRESET, errno.EPIPE)
SETTLED = 3000  # events after which nothing of an exchange is under way any more


@dataclass
class Side:
    """What the model knows of one end of a connection."""

    socket: Socket
    sent: int = 0  # bytes that the stack has taken
    read: int = 0  # bytes that came out here
    shut: bool = False  # our direction has ended
    closed: bool = False
    ended: bool = False  # the end of the stream was seen
    told: int = 0  # what poll said when the socket was last listed as ready
    other: Side = field(init=False)

    def waits(self) -> int:
        """Bytes that can be read."""
        return self.socket.ioctl(termios.FIONREAD)

    def unacknowledged(self) -> int:
        return self.socket.ioctl(termios.TIOCOUTQ)

    @property
    def may_be_reset(self) -> bool:
        """The peer has closed without reading everything, or before it was sent."""
        return self.other.closed

    def unread(self) -> bytes:
        return pattern(self.read, self.other.sent - self.read)


class Losses:
    """The wire's impairment: loses the next so many frames."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, frame: bytes) -> list[tuple[int, bytes]]:
        if self.left:
            self.left -= 1
            return []
        return [(0, frame)]


class Sockets(RuleBasedStateMachine):
    """Two stacks on a wire, and connections between them."""

    sides: Bundle[Side] = Bundle("sides")

    def __init__(self) -> None:
        super().__init__()
        self.losses = Losses()
        a = make_stack(**CONFIG, address="192.0.2.1", seed=(1, 2))
        b = make_stack(**CONFIG, address="192.0.2.2", seed=(3, 4))
        self.wire = Wire(a, b, delay_ns=100_000, rate_bps=100_000_000, impair=self.losses)
        self.stacks = (a, b)
        self.port = 5000
        self.all: list[Side] = []

    def pass_events(self, count: int) -> None:
        self.wire.flush()
        for _ in range(count):
            if not self.wire.step():
                break

    # -- calls

    @rule(target=sides)
    def connect(self):
        if len(self.all) >= 16:
            return multiple()
        self.losses.left = 0
        self.port += 1
        one, other = (Side(s) for s in connect_pair(self.wire, self.port))
        one.other, other.other = other, one
        self.all += [one, other]
        return multiple(one, other)

    @rule(side=sides, size=st.integers(0, 20_000), more=st.booleans())
    def send(self, side: Side, size: int, more: bool) -> None:
        if side.closed:
            return
        data = pattern(side.sent, size)
        try:
            taken = side.socket.send(data, socket.MSG_MORE if more else 0)
        except BlockingIOError:
            assert size > 0 and not side.shut
            assert side.sent > side.other.read  # something is still on its way
        except OSError as error:
            assert error.errno in RESET
            assert side.shut or side.may_be_reset
        else:
            assert not side.shut
            assert 0 < taken <= size or taken == size == 0
            side.sent += taken

    @rule(side=sides, size=st.integers(1, 20_000), peek=st.booleans())
    def receive(self, side: Side, size: int, peek: bool) -> None:
        if side.closed:
            return
        ready, waits = side.socket.poll(), side.waits()
        try:
            data = side.socket.recv(size, socket.MSG_PEEK if peek else 0)
        except BlockingIOError:
            assert not waits and not ready & (select.POLLIN | select.POLLHUP)
            assert not side.ended
            return
        except OSError as error:
            assert error.errno in RESET
            assert side.may_be_reset
            assert not waits  # what was acknowledged comes first
            assert ready & (select.POLLIN | select.POLLERR)
            return
        assert ready & select.POLLIN
        assert data == side.unread()[: len(data)]
        assert len(data) == min(size, waits)
        if not data:
            assert side.other.shut or side.other.closed
            assert side.read == side.other.sent or side.may_be_reset
            side.ended = True
        elif not peek:
            assert not side.ended
            side.read += len(data)

    @rule(side=sides)
    def shut_down(self, side: Side) -> None:
        if side.closed:
            return
        try:
            side.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            assert error.errno == errno.ENOTCONN
            assert side.may_be_reset or (side.shut and side.other.shut)
        side.shut = True

    @rule(side=consumes(sides))
    def close(self, side: Side) -> None:
        side.socket.close()
        side.shut = side.closed = True

    @rule(side=consumes(sides))
    def reset(self, side: Side) -> None:
        """What the peer has of it by then is read as if there had been no reset."""
        side.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        side.socket.close()
        side.shut = side.closed = True

    @rule()
    def list_what_is_ready(self) -> None:
        """Whoever has more to tell than when it was last listed is listed, and nobody else's
        number."""
        for stack in self.stacks:
            open_here = {s.socket.number: s for s in self.open_sides() if s.socket.stack is stack}
            told = {number: side.told for number, side in open_here.items()}
            listed = list(iter(lambda: stack.ready(3), []))
            numbers = [number for some in listed for number in some]
            assert len(set(numbers)) == len(numbers)
            assert set(numbers) <= set(open_here)
            for number, side in open_here.items():
                side.told = side.socket.poll()
                assert number in numbers or not side.told & ~told[number]

    # -- what always holds

    def open_sides(self) -> Iterator[Side]:
        return (side for side in self.all if not side.closed)

    @invariant()
    def what_is_counted_is_there(self) -> None:
        for side in self.open_sides():
            assert side.waits() <= side.other.sent - side.read
            assert side.unacknowledged() <= side.sent + side.shut
            if not side.other.closed and state_name(side.other.socket.tcp_info()) != "CLOSE":
                missing = side.other.sent - side.read - side.waits()
                assert missing <= side.other.unacknowledged()

    # -- the network and time

    @rule(count=st.integers(1, 60))
    def time_passes(self, count: int) -> None:
        self.pass_events(count)

    @rule(frames=st.integers(1, 12))
    def frames_are_lost(self, frames: int) -> None:
        self.losses.left += frames

    @rule()
    def all_settles(self) -> None:
        self.losses.left = 0
        self.pass_events(SETTLED)

    # -- the end

    def read_all(self, side: Side) -> bool:
        """Reads what there is; True if anything came."""
        before = side.read, side.ended
        if not side.ended:
            self.receive(side, 20_000, False)
        return (side.read, side.ended) != before

    def teardown(self) -> None:
        """Every byte that a stack has taken comes out, and every end that was said."""
        self.losses.left = 0
        for side in self.all:
            if not side.closed:
                self.shut_down(side)
        healthy = [side for side in self.all if not side.closed and not side.other.closed]
        for _ in range(200):
            self.pass_events(50)
            if not any([self.read_all(side) for side in healthy]) and all(
                side.ended for side in healthy
            ):
                break
        for side in healthy:
            assert side.read == side.other.sent
            assert side.ended


SETTINGS = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_random_socket_calls_match_model() -> None:
    run_state_machine_as_test(Sockets, settings=SETTINGS)
