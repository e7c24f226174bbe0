# SPDX-License-Identifier: Apache-2.0
"""HARP and Linux reset each other's connections in every state."""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass, replace
from typing import Any

import pytest
from interop_ends import Case, accept, connect, connected, converse, flags, listen, make_ends, more

from harp.testing._stack import Socket
from harp.testing.tun import AnySocket, TunWire, state_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a namespace needs root")

QUIET_S = 0.3  # longer than an RTO of either side
STAYS_S = 1.3  # longer than the first RTO of a SYN, which is a second


def abort(end: AnySocket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


def error_of(end: AnySocket) -> int:
    if isinstance(end, Socket):
        return int(end.error())
    return end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


@dataclass
class Connection:
    """The side that gets the reset, and the side that sends it. `out`: the direction from the
    first."""

    wire: TunWire
    victim: AnySocket
    peer: AnySocket

    @property
    def out(self) -> bool:
        return isinstance(self.victim, Socket)

    def until(self, state: str) -> None:
        self.wire.run(lambda: state_of(self.victim) == state)


def into_established(c: Connection) -> None:
    c.until("ESTABLISHED")


def into_fin_wait1(c: Connection) -> None:
    c.wire.hold(c.out)  # the peer does not receive the FIN
    c.victim.shutdown(socket.SHUT_WR)
    c.until("FIN_WAIT1")


def into_fin_wait2(c: Connection) -> None:
    c.victim.shutdown(socket.SHUT_WR)
    c.until("FIN_WAIT2")


def into_close_wait(c: Connection) -> None:
    c.peer.shutdown(socket.SHUT_WR)
    c.until("CLOSE_WAIT")


def into_closing(c: Connection) -> None:
    into_fin_wait1(c)
    c.peer.shutdown(socket.SHUT_WR)
    c.until("CLOSING")


def into_last_ack(c: Connection) -> None:
    into_close_wait(c)
    c.wire.run(lambda: state_of(c.peer) == "FIN_WAIT2")
    c.wire.hold(c.out)
    c.victim.shutdown(socket.SHUT_WR)
    c.until("LAST_ACK")


NOTHING_LEFT = (0, errno.ECONNRESET, errno.EPIPE)  # allowed errors of sends and receives
RESETS = {
    into_established: (errno.ECONNRESET,),
    into_fin_wait1: (errno.ECONNRESET,),
    into_fin_wait2: (errno.ECONNRESET,),
    into_close_wait: (errno.ECONNRESET, errno.EPIPE),
    into_closing: NOTHING_LEFT,
    into_last_ack: NOTHING_LEFT,
}
VICTIMS = pytest.mark.parametrize("harp_is_reset", [True, False], ids=["harp is", "linux is"])


def connection(wire: TunWire, case: Case, harp_is_reset: bool) -> tuple[Connection, AnySocket]:
    """An established connection to a listener on the side of the reset, and that listener."""
    ends = connected(wire, replace(case, harp_connects=not harp_is_reset))
    pair = (ends.harp, ends.linux) if harp_is_reset else (ends.linux, ends.harp)
    return Connection(wire, *pair), ends.listener


@VICTIMS
@pytest.mark.parametrize("bring", RESETS, ids=lambda bring: bring.__name__)
def test_reset_closes_every_state(
    wire: TunWire, case: Case, bring: Any, harp_is_reset: bool
) -> None:
    """A reset closes the connection at once, the program gets the error, and the port accepts other
    connections."""
    c, listener = connection(wire, case, harp_is_reset)
    bring(c)
    wire.seen.clear()
    abort(c.peer)
    c.until("CLOSE")
    assert error_of(c.victim) in RESETS[bring]
    resets = [raw for to_kernel, raw in wire.seen if to_kernel != c.out and "R" in flags(raw)]
    assert resets
    wire.held[c.out].clear()
    wire.hold(c.out, False)
    wire.seen.clear()
    wire.give(not c.out, resets[-1])  # a repetition: a listener ignores it
    wire.run_for(QUIET_S)
    assert not wire.seen
    harp, linux = make_ends(wire, case)
    converse(more(wire, linux if harp_is_reset else harp, listener), case)


@VICTIMS
def test_reset_in_syn_sent_is_econnrefused(wire: TunWire, case: Case, harp_is_reset: bool) -> None:
    """The port has no listener."""
    harp, linux = make_ends(wire, case)
    victim, other = (harp, linux) if harp_is_reset else (linux, harp)
    connect(victim, other)
    assert state_of(victim) == "SYN_SENT"
    wire.run(lambda: state_of(victim) == "CLOSE")
    assert error_of(victim) == errno.ECONNREFUSED


@VICTIMS
def test_reset_in_syn_received_returns_to_listen(
    wire: TunWire, case: Case, harp_is_reset: bool
) -> None:
    """The connecting side aborts before it receives the SYN-ACK."""
    harp, linux = make_ends(wire, case)
    listener, other = (harp, linux) if harp_is_reset else (linux, harp)
    listen(listener)
    wire.hold(harp_is_reset)
    connect(other, listener)
    wire.run(lambda: wire.held[harp_is_reset])
    assert flags(wire.held[harp_is_reset][0]) == "SA"
    other.close()
    wire.seen.clear()
    wire.hold(harp_is_reset, False)
    wire.run_for(STAYS_S)
    assert [flags(raw)[0] for _, raw in wire.seen] == ["R"], "the SYN-ACK was sent again"
    assert accept(listener) is None
    harp, linux = make_ends(wire, case)
    converse(more(wire, linux if harp_is_reset else harp, listener), case)


@VICTIMS
def test_reset_in_time_wait_is_ignored_by_harp(
    wire: TunWire, case: Case, harp_is_reset: bool
) -> None:
    """A late copy of the last ACK reaches a closed connection and draws a reset. HARP stays in
    TIME-WAIT (RFC 1337); Linux leaves it by default."""
    c, _ = connection(wire, case, harp_is_reset)
    into_fin_wait2(c)
    wire.seen.clear()
    c.peer.shutdown(socket.SHUT_WR)
    wire.run(lambda: state_of(c.peer) == "CLOSE")
    c.peer.close()
    (last,) = [raw for to_kernel, raw in wire.seen if to_kernel == c.out]
    if harp_is_reset:
        assert state_of(c.victim) == "TIME_WAIT"
    else:
        assert wire.kernel.waiting() == 1
    wire.seen.clear()
    wire.give(c.out, last)
    wire.run(lambda: wire.seen)
    (answer,) = [raw for _, raw in wire.seen]
    assert "R" in flags(answer)
    if harp_is_reset:
        wire.run_for(0.05)
        assert state_of(c.victim) == "TIME_WAIT"
    else:
        assert wire.kernel.waiting() == 0
