# SPDX-License-Identifier: Apache-2.0
"""Measures one pair of ranks: round trips, then messages in both directions at the same time.

Both ranks call `pair` at the same time. Messages of 8 bytes are pings. A message of 1 byte ends a
direction. Other messages only fill the link. They begin small, so that a slow link ends soon, and
grow on a fast one, so that their number does not matter.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Callable

from harp.check.links import LARGEST, POSTED, Link
from harp.check.netplugin import PluginError

PING, END = 8, 1  # bytes of these messages
PINGS = 8
SMALLEST = 64 << 10
LEAST_MESSAGES = 3  # in each direction, however slow it is
GROW_S = 0.004  # messages that take less are doubled
STALLED = "stalled"  # begins the text of such a failure
TIMEOUT_S = 8.0  # without an end, beyond the time of the measurement


@dataclass
class Measured:
    """What this rank saw of a peer. `rtt_us`: the shortest round trip, µs, -1 on the rank that
    answers. `gbit`: the rate from this rank to the peer, Gbit/s."""

    rtt_us: float
    gbit: float


class _Direction:
    """The sending side of a stream, for some seconds. The rate counts until the peer has
    acknowledged all. Only the sender can tell it: a busy receiver finds many messages at once."""

    def __init__(self, link: Link, seconds: float) -> None:
        self._link = link
        self._begun = self._grown = self._over = time.monotonic()
        self._until = self._begun + seconds
        self._size, self._count, self._bytes, self._ended = SMALLEST, 0, 0, False

    def step(self) -> bool:
        """Posts what the link takes. Returns whether all is sent and acknowledged."""
        now = time.monotonic()
        if self._ended:
            self._over = now
            return self._link.sent_all()
        if now >= self._until and self._count >= LEAST_MESSAGES:
            self._ended = self._link.send(END)
        elif self._link.send(self._size):
            self._count += 1
            self._bytes += self._size
            # The first posts say nothing: the link takes them at once, however slow it is.
            if self._size < LARGEST and self._count > POSTED and now - self._grown < GROW_S:
                self._size *= 2
            self._grown = now
        else:
            self._link.sent_all()
        return False

    def gbit(self) -> float:
        """The rate, Gbit/s."""
        return self._bytes * 8e-9 / max(1e-9, self._over - self._begun)


class _Arrivals:
    """The receiving side of a stream."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.ended = False

    def step(self) -> None:
        """Takes the messages that have come."""
        while not self.ended:
            size = self._link.arrived()
            if size is None:
                return
            self.ended = size == END


def _until(done: Callable[[], bool], seconds: float, what: str) -> None:
    limit = time.monotonic() + seconds
    while not done():
        if time.monotonic() > limit:
            raise PluginError(f"{what} within {seconds:.0f} s")
        os.sched_yield()


def _arrives(link: Link) -> Callable[[], bool]:
    return lambda: link.arrived() is not None


def _round_trips(link: Link, first: bool) -> float:
    best = -1.0
    stuck = f"{STALLED}: a short message did not come"
    for _ in range(PINGS):
        begun = time.monotonic()
        if first:
            _until(lambda: link.send(PING), TIMEOUT_S, stuck)
        _until(_arrives(link), TIMEOUT_S, stuck)
        took = (time.monotonic() - begun) * 1e6
        if first:
            best = took if best < 0 else min(best, took)
        else:
            _until(lambda: link.send(PING), TIMEOUT_S, stuck)
    return best


def pair(link: Link, first: bool, seconds: float) -> Measured:
    """Measures for that long. first: this rank sends the pings. Raises PluginError if the link
    fails or stalls. It then may not be used again."""
    rtt = _round_trips(link, first)
    sending, arrivals = _Direction(link, seconds), _Arrivals(link)
    sent = False

    def done() -> bool:
        nonlocal sent
        arrivals.step()
        sent = sent or sending.step()
        return sent and arrivals.ended

    stuck = f"{STALLED}: short messages pass, and long ones did not come"
    _until(done, seconds + TIMEOUT_S, stuck)
    return Measured(rtt, sending.gbit())
