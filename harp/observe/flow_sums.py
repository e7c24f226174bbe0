# SPDX-License-Identifier: Apache-2.0
"""Sums of the flows by peer, and a histogram of their round-trip times, over many readings.

A flow leaves the statistics file when it closes. Its part stays in the sums, so that they only
grow, as Prometheus' counters must. The sums of a process go some readings after its file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Optional

from harp.observe.message_times import BUCKETS, OPERATIONS, percentile_s
from harp.observe.statfile import Flow, Process

PEERS_MOST = 64  # peers of a process on a NIC with metrics of their own
OTHER = "other"
ABSENT_MOST = 4  # readings without a process before its sums go: one may fail to read its file
FLOWS_MOST = 512  # entries that HARP writes (HARP_STAT_FLOWS); a false file may have more

SUMS = (
    "bytes_out",
    "bytes_in",
    "retransmits",
    "ack_wait_ms",
    "window_wait_ms",
    "device_wait_ms",
    "receive_wait_ms",
)

# Upper bounds of the histogram, in seconds; the last bucket has no bound.
RTT_BOUNDS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.2, 1.0)

# A connection. Its link and direction are not in it, because a closed flow that lingers has none.
_Key = tuple[int, int, str, str, float]


@dataclass
class Peer:
    """What the flows of a process on a NIC have done with one peer. `sums` has the fields of
    `SUMS`, also of flows that are closed. `flows`, `receiving` (those of them that receive
    messages), `rtt_us` (the largest smoothed round trip) and `min_rtt_us` are those of the open
    flows; 0: no flow, or nothing measured. `messages` has for each direction the sum of the
    messages' times in ns, and then their number in each bucket."""

    sums: list[int] = field(default_factory=lambda: [0] * len(SUMS))
    messages: dict[str, list[int]] = field(default_factory=dict)
    flows: int = 0
    receiving: int = 0
    rtt_us: int = 0
    min_rtt_us: int = 0

    def merge(self, other: Peer) -> None:
        """Adds what the flows of another process or NIC have done with the same peer."""
        _add(self.sums, other.sums)
        for direction, times in other.messages.items():
            _add(self.messages.setdefault(direction, [0] * len(times)), times)
        self.flows += other.flows
        self.receiving += other.receiving
        self.rtt_us = max(self.rtt_us, other.rtt_us)
        self.min_rtt_us = min(filter(None, (self.min_rtt_us, other.min_rtt_us)), default=0)

    def p99_s(self, direction: str) -> Optional[float]:
        """The time in seconds below which 99 % of the direction's messages lie; None: there is no
        message."""
        return percentile_s(self.messages.get(direction, [0])[1:], 99)


def _add(sums: list[int], values: Sequence[int]) -> None:
    for i, value in enumerate(values):
        sums[i] += value


class FlowSums:
    """The sums of one statistics file. peers_most: peers that have sums of their own; the others
    share OTHER."""

    def __init__(self, peers_most: int = PEERS_MOST) -> None:
        self._peers_most = peers_most
        self.peers: dict[str, Peer] = {}
        self.rtt_counts = [0] * (len(RTT_BOUNDS) + 1)
        self.rtt_sum_us = 0
        # The flows of the last reading and of the one before. An entry that kept changing during a
        # reading is missing there, and comes back in the next one.
        self._last: dict[_Key, list[int]] = {}
        self._before: dict[_Key, list[int]] = {}

    def _peer(self, flow: Flow) -> Peer:
        address = flow.peer_address
        others = len(self.peers) - (OTHER in self.peers)
        if address not in self.peers and others >= self._peers_most:
            address = OTHER
        return self.peers.setdefault(address, Peer())

    def _observe(self, flow: Flow) -> None:
        self.rtt_counts[bisect_left(RTT_BOUNDS, flow.srtt_us / 1e6)] += 1
        self.rtt_sum_us += flow.srtt_us

    def add(self, flows: Sequence[Flow]) -> None:
        """Adds what the flows have done since the last reading. The histogram counts each open flow
        once a reading."""
        for peer in self.peers.values():
            peer.flows = peer.receiving = peer.rtt_us = peer.min_rtt_us = 0
        now: dict[_Key, list[int]] = {}
        busiest = sorted(flows[:FLOWS_MOST], key=lambda flow: -flow.bytes_in - flow.bytes_out)
        for flow in busiest:
            key = (flow.flow, flow.instance, flow.local, flow.peer, flow.opened)
            if key in now:
                continue
            values: list[int] = [getattr(flow, name) for name in SUMS]
            if flow.direction in OPERATIONS and len(flow.message_times) == BUCKETS:
                values += [flow.message_time_ns, *flow.message_times]
            then = list(self._last.get(key) or self._before.get(key) or ())
            then += [0] * (len(values) - len(then))  # a new flow, or one without a direction then
            peer = self._peer(flow)
            moved = [new - old if new >= old else new for new, old in zip(values, then)]
            _add(peer.sums, moved[: len(SUMS)])
            if len(moved) > len(SUMS):
                messages = peer.messages.setdefault(flow.direction, [0] * (1 + BUCKETS))
                _add(messages, moved[len(SUMS) :])
            now[key] = values
            peer.flows += 1
            peer.receiving += flow.direction == "R"
            if flow.srtt_us:
                peer.rtt_us = max(peer.rtt_us, flow.srtt_us)
                self._observe(flow)
            if flow.min_rtt_us:
                peer.min_rtt_us = min(peer.min_rtt_us or flow.min_rtt_us, flow.min_rtt_us)
        self._before, self._last = self._last, now

    def begin(self, flows: Sequence[Flow]) -> None:
        """Takes the first reading as the beginning: the sums of these flows are 0 now."""
        self.add(flows)
        for peer in self.peers.values():
            peer.sums = [0] * len(SUMS)
            peer.messages = {one: [0] * len(times) for one, times in peer.messages.items()}


def of_open_flows(processes: Sequence[Process]) -> dict[str, Peer]:
    """The sums of the present flows of all these processes, by the peer's address. Each peer has
    sums of its own."""
    total: dict[str, Peer] = {}
    for process in processes:
        sums = FlowSums(peers_most=FLOWS_MOST)
        sums.add(process.flows)
        for address, one in sums.peers.items():
            total.setdefault(address, Peer()).merge(one)
    return total


def between(before: Process, now: Process) -> dict[str, Peer]:
    """What the open flows of a process have done with each peer between two readings, by the peer's
    address."""
    sums = FlowSums(peers_most=FLOWS_MOST)
    sums.add(before.flows)
    sums.peers.clear()
    sums.add(now.flows)
    return sums.peers


def total(peers: Iterable[Peer]) -> Peer:
    """The sum over peers."""
    whole = Peer()
    for one in peers:
        whole.merge(one)
    return whole


class Readings:
    """The sums of all processes. Thread: one at a time. whole: they contain what a process did
    before its first reading. An exporter that starts again must not add that: Prometheus takes a
    sum that falls for one that began at 0, and closed flows are missing in it."""

    def __init__(self, whole: bool = True) -> None:
        self._whole = whole
        self._files: dict[tuple[str, int], FlowSums] = {}
        self._absent: dict[tuple[str, int], int] = {}  # readings since the process was found

    def add(self, processes: Sequence[Process]) -> list[FlowSums]:
        """Takes a reading of the running processes. Returns their sums, in the same order, and
        forgets processes that were not among them in the last ABSENT_MOST readings."""
        found = {}
        for process in processes:
            key = process.id, process.uid
            sums = self._files.get(key) or FlowSums()
            (sums.add if self._whole or key in self._files else sums.begin)(process.flows)
            found[key] = sums
        absent = {key: self._absent.get(key, 0) + 1 for key in self._files if key not in found}
        self._absent = {key: times for key, times in absent.items() if times < ABSENT_MOST}
        self._files = {key: self._files[key] for key in self._absent} | found
        return list(found.values())
