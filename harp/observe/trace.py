# SPDX-License-Identifier: Apache-2.0
"""Reads a binary trace that a process wrote after a fault.

The file contains the names of its events (see harp/engine/trace.h), so traces of other releases
are readable, too.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from harp.observe import foreign

_MAGIC = b"HARPTRCE"
_VERSIONS = (1, 2)
_HEADER = struct.Struct("=8sIIIIIIQQ32s64s256s")
_DEVICE = struct.Struct("=256s")  # follows from version 2
_EVENT = struct.Struct("=32s16s16s")
_COUNT = struct.Struct("=Q")
_RECORD = struct.Struct("=QQ")
_WRAP = 1 << 48  # nanoseconds after which a record's clock wraps
# HARP writes 65,536 records for each of at most 8 instances. A record takes 420 bytes here.
_RECORDS_MOST = 1 << 20
_INSTANCES_MOST = 64
_EVENTS_MOST = 256  # a record has a byte for the number of its event
_SIZE_MOST = 32 << 20  # bytes of a file

NO_FLOW = 0xFFFF


class TraceError(ValueError):
    """The file is not a trace that this release can read."""


@dataclass(frozen=True)
class Record:
    """One event. `time_ns` is in nanoseconds since the epoch; `flow` is None for an event of the
    instance itself; `values` are the event's numbers by name, addresses in dotted form."""

    time_ns: int
    instance: int
    flow: Optional[int]
    event: str
    values: dict[str, Union[int, str]]


@dataclass(frozen=True)
class Trace:
    """A trace of a process's NIC. `device` is "" in files of older releases. `written_ns` is in
    nanoseconds since the epoch; `records` are in order of time."""

    pid: int
    host: str
    device: str
    release: str
    reason: str
    written_ns: int
    records: list[Record]


class _Reader:
    """Unpacks structures one after the other from a file's bytes."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self.data = data
        self.offset = 0

    def take(self, what: struct.Struct) -> tuple[Any, ...]:
        if self.offset + what.size > len(self.data):
            raise TraceError(f"{self.path}: ends too early; the file is damaged")
        values = what.unpack_from(self.data, self.offset)
        self.offset += what.size
        return values


def _value(name: str, number: int) -> Union[int, str]:
    """A value as text if it is an address. The record holds addresses in network order."""
    return socket.inet_ntoa(struct.pack("=I", number)) if name.endswith("_address") else number


def _record(
    when: int,
    what: int,
    instance: int,
    names: list[tuple[str, str, str]],
    now_ns: int,
    realtime_ns: int,
) -> Record:
    ago = (now_ns - (when >> 16)) % _WRAP
    flow = when & 0xFFFF
    event = what & 0xFF
    name, a, b = names[event] if event < len(names) else (f"event-{event}", "a", "b")
    values: dict[str, Union[int, str]] = {}
    if a:
        values[a] = what >> 8 & 0xFFFFFF
    if b:
        values[b] = _value(b, what >> 32)
    return Record(realtime_ns - ago, instance, None if flow == NO_FLOW else flow, name, values)


def read(path: Path) -> Trace:
    """Reads a trace. Raises OSError if the file cannot be read, TraceError if it is wrong."""
    try:
        return _parse(path, foreign.read(path, _SIZE_MOST))
    except foreign.ForeignError as wrong:
        raise TraceError(str(wrong)) from wrong


def _parse(path: Path, data: bytes) -> Trace:
    reader = _Reader(path, data)
    if data[:8] != _MAGIC:
        raise TraceError(f"{path}: not a trace of HARP's; these are *.trace in the run folder")
    (
        _,
        version,
        _,
        event_size,
        events,
        instances,
        pid,
        now_ns,
        realtime_ns,
        release,
        host,
        reason,
    ) = reader.take(_HEADER)
    if version not in _VERSIONS or event_size != _EVENT.size:
        raise TraceError(
            f"{path}: its format is {version}, but this release reads "
            f"{' and '.join(map(str, _VERSIONS))}"
        )
    if instances > _INSTANCES_MOST or events > _EVENTS_MOST:
        raise TraceError(f"{path}: has more instances or events than HARP; the file is damaged")
    device = b"" if version < 2 else reader.take(_DEVICE)[0]
    names = []
    for _ in range(events):
        name, a, b = map(foreign.text, reader.take(_EVENT))
        names.append((name, a, b))
    records: list[Record] = []
    for instance in range(instances):
        (count,) = reader.take(_COUNT)
        if len(records) + count > _RECORDS_MOST:
            raise TraceError(f"{path}: has more records than HARP writes; the file is damaged")
        for _ in range(count):
            when, what = reader.take(_RECORD)
            records.append(_record(when, what, instance, names, now_ns, realtime_ns))
    records.sort(key=lambda record: record.time_ns)
    return Trace(
        pid,
        foreign.text(host),
        foreign.text(device),
        foreign.text(release),
        foreign.text(reason),
        realtime_ns,
        records,
    )
