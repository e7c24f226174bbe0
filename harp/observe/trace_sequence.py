# SPDX-License-Identifier: Apache-2.0
"""Reads the time-sequence graph of a flow from a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from harp.observe.time_sequence import Sequences, Unwrapped
from harp.observe.trace import Record, Trace

# Events that become marks: those of the flow, and those of its device.
_MARKS = frozenset(("established", "recovery", "rto", "window_closed", "reset", "closed", "fence"))
_DEVICE_MARKS = frozenset(("port_error", "carrier_lost", "port_back"))


class NoFlow(LookupError):
    """The trace has no such flow, or no data that it sent."""


@dataclass
class Connection:
    """What a trace shows of the data that one connection sent. `flow` is its local port; `peer`
    is "" if the trace begins after the connection was opened. `base` is the sequence number that
    has offset 0. Times are in ns since `began_ns`, which counts from the epoch."""

    flow: int
    began_ns: int
    peer: str = ""
    base: Optional[int] = None
    seen: Sequences = field(default_factory=Sequences)
    _place: Unwrapped = field(default_factory=lambda: Unwrapped(0))

    @property
    def sent(self) -> int:
        """Bytes of new data."""
        return sum(high - low for _, low, high in self.seen.data)

    def _offset(self, number: int) -> int:
        if self.base is None:
            self.base, self._place = number, Unwrapped(number)
        return self._place(number)

    def add(self, record: Record) -> None:
        """Adds an event of the flow, or of its device. The events come in order of time."""
        time = record.time_ns - self.began_ns
        if record.event in _MARKS or record.event in _DEVICE_MARKS:
            self.seen.marks.append((time, record.event))
        if record.event in ("sent", "retransmit", "lost"):
            low = self._offset(int(record.values["sequence"]))
            spans = {"sent": self.seen.data, "retransmit": self.seen.again, "lost": self.seen.lost}
            spans[record.event].append((time, low, low + int(record.values["length"])))
        elif record.event == "acked":
            acked = self._offset(int(record.values["sequence"]))
            self.seen.ack.append((time, acked))
            self.seen.edge.append((time, acked + (int(record.values["window_kib"]) << 10)))


def connections(found: Trace) -> list[Connection]:
    """The connections that have sent data in this trace, those with the most data first. A port
    that has several connections, one after the other, appears several times. Connections that a
    listener accepted are left out: they share its port, so their events cannot be told apart, and
    in HARP's links they send a welcome only."""
    accepted = {record.flow for record in found.records if record.event == "accept"}
    began = min((record.time_ns for record in found.records), default=found.written_ns)
    now: dict[int, Connection] = {}
    every: list[Connection] = []
    for record in found.records:
        if record.flow is None:
            if record.event in _DEVICE_MARKS:
                for connection in now.values():
                    connection.add(record)
            continue
        if record.flow in accepted:
            continue
        opens = record.event == "connect"
        if opens or record.flow not in now:
            now[record.flow] = Connection(record.flow, began)
            every.append(now[record.flow])
        if opens:
            values = record.values
            now[record.flow].peer = f"{values['peer_address']}:{values['peer_port']}"
        now[record.flow].add(record)
    shown = [one for one in every if one.seen.spans]
    return sorted(shown, key=lambda one: -one.sent)


def choose(found: Trace, flow: Optional[int] = None) -> Connection:
    """The connection of this flow that has sent the most; None: that of any flow. Raises
    NoFlow."""
    shown = connections(found)
    of_flow = [one for one in shown if flow in (None, one.flow)]
    if not shown:
        raise NoFlow(
            "the trace shows no data that was sent: take the trace of the host that sends, "
            "written by this release"
        )
    if not of_flow:
        raise NoFlow(f"flow {flow} has sent no data in this trace; these have: {_names(shown)}")
    return of_flow[0]


def _names(shown: Sequence[Connection]) -> str:
    return ", ".join(dict.fromkeys(str(one.flow) for one in shown))
