# SPDX-License-Identifier: Apache-2.0
"""The binary trace: what is recorded is what a dump tells."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harp import _tables
from harp.cli.stat import trace_lines
from harp.observe import trace
from harp.testing import _engine

NOBODY = 0xFFFF  # the flow of an event of the instance itself
EVENTS = [event["name"] for event in _tables.trace_events()]


def in_a_process(code: str) -> str:
    """A process writes few dumps: each test has one of its own."""
    done = subprocess.run(
        [sys.executable, "-c", "from harp.testing import _engine\n" + code],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_recorded_events_are_read_from_dump(run_dir: Path) -> None:
    rto, chunk = EVENTS.index("rto"), EVENTS.index("chunk_in")
    path = in_a_process(f"""
one, two = _engine.Trace(16), _engine.Trace(16)
one.record(10_000_000_000, 0xffff, 0, 1, 2)
one.record(10_000_001_000, 3, {rto}, 0xffffff, 0xffffffff)
two.record(10_000_000_500, 65534, {chunk}, 1000, 2000)
print(_engine.dump([one, two], b"link 7 failed", 10_000_002_000, b"packet:eth1"))
""")
    assert Path(path).suffix == ".trace"
    found = trace.read(Path(path))
    assert (found.reason, found.device) == ("link 7 failed", "packet:eth1")
    assert found.release == _tables.version()
    assert [(one.instance, one.flow, one.event, one.values) for one in found.records] == [
        (0, None, "poll", {"frames_in": 1, "frames_out": 2}),
        (1, 65534, "chunk_in", {"length": 1000, "offset": 2000}),
        (0, 3, "rto", {"backoff": 0xFFFFFF, "sequence": 0xFFFFFFFF}),
    ]
    assert abs(found.written_ns / 1e9 - time.time()) < 60
    assert [found.written_ns - one.time_ns for one in found.records] == [2000, 1500, 1000]


def test_trace_of_version_1_is_readable(run_dir: Path) -> None:
    """Its header has no device."""
    path = Path(
        in_a_process("""
ring = _engine.Trace(8)
ring.record(1, 1, 0, 7, 8)
print(_engine.dump([ring], b"why", 1, b"packet:eth1"))
""")
    )
    data, size = bytearray(path.read_bytes()), trace._HEADER.size
    del data[size : size + trace._DEVICE.size]
    data[8:12] = struct.pack("=I", 1)
    path.write_bytes(data)
    found = trace.read(path)
    assert (found.reason, found.device) == ("why", "")
    assert [record.values for record in found.records] == [{"frames_in": 7, "frames_out": 8}]
    assert ", release " in next(trace_lines(found))


def test_trace_addresses_are_shown_dotted(run_dir: Path) -> None:
    events = [
        EVENTS.index(name) for name in ("connect", "accept", "established", "unauthenticated")
    ]
    path = in_a_process(f"""
ring = _engine.Trace(16)
for event in {events}:
    ring.record(1, 1, event, 50000, int.from_bytes(bytes((10, 1, 3, 2)), "little"))
print(_engine.dump([ring], b"", 1))
""")
    records = trace.read(Path(path)).records
    assert len(records) == 4 and {one.values["peer_address"] for one in records} == {"10.1.3.2"}
    said = subprocess.run(
        [sys.executable, "-m", "harp", "stat", "--trace", path],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert said.count("peer_address=10.1.3.2\n") == 4


def shown(events: list[tuple[int, int, str, int, int]]) -> list[str]:
    """The lines of a trace with these events: ms, flow, name, and the event's two numbers."""
    calls = "; ".join(
        f"ring.record({ms * 10**6}, {flow}, {EVENTS.index(name)}, {a}, {b})"
        for ms, flow, name, a, b in events
    )
    end = events[-1][0] * 10**6
    path = in_a_process(f"""
ring = _engine.Trace(64); {calls}
print(_engine.dump([ring], b"why", {end}))
""")
    return list(trace_lines(trace.read(Path(path))))


def test_trace_counts_frames_before_its_end(run_dir: Path) -> None:
    """The count tells a dead path from one that still carries ARP."""
    lines = shown(
        [
            (1000, NOBODY, "poll", 100, 0),
            (9000, NOBODY, "poll", 2, 3),
            (10000, NOBODY, "poll", 0, 4),
            (11000, 5, "closed", 110, 0),
        ]
    )
    assert re.search(r"^frames in the last 3\.0 s of the trace: 2 in \(.*\), 7 out \(", lines[2])


def test_trace_line_of_frames_needs_polls(run_dir: Path) -> None:
    assert not any(line.startswith("frames") for line in shown([(1000, 5, "closed", 110, 0)]))


def test_trace_names_error_numbers(run_dir: Path) -> None:
    assert shown([(1000, 5, "closed", 110, 0)])[-1].endswith("errno=110 ETIMEDOUT")


def test_trace_joins_events_of_full_device(run_dir: Path) -> None:
    """The device may be full thousands of times in a row, and hide what happened before."""
    full = [(ms, NOBODY, "port_full", 0, 0) for ms in (1001, 1002, 1004)]
    lines = shown([(1000, 5, "rto", 1, 2), *full, (1005, 5, "rto", 2, 2), (1006, 5, "rto", 2, 2)])
    first, joined, *others = lines[1:]
    assert "port_full" in joined and "3 times until" in joined
    assert joined.split()[1] == others[0].split()[1] == "+1000.000"
    assert len(others) == 2, "events with numbers have a line each"


def test_trace_ring_keeps_last_events(run_dir: Path) -> None:
    path = in_a_process("""
ring = _engine.Trace(8)
for i in range(100):
    ring.record(i, 1, 0, 0, i)
print(_engine.dump([ring], b"", 100))
""")
    records = trace.read(Path(path)).records
    # The oldest may be half overwritten by a poller: it is left out.
    assert [record.values["frames_out"] for record in records] == list(range(93, 100))


def test_trace_clock_may_exceed_48_bits(run_dir: Path) -> None:
    path = in_a_process("""
ring = _engine.Trace(8)
ring.record(2**48 - 5000, 1, 0, 0, 0)
ring.record(2**48 + 5000, 1, 0, 0, 1)
print(_engine.dump([ring], b"", 2**48 + 6000))
""")
    found = trace.read(Path(path))
    assert [found.written_ns - one.time_ns for one in found.records] == [11000, 1000]


def test_process_writes_at_most_eight_dumps(run_dir: Path) -> None:
    said = in_a_process("""
ring = _engine.Trace(8)
for i in range(9):
    try:
        _engine.dump([ring], b"", 0)
    except OSError as error:
        print(i, error.errno)
""")
    assert said == "8 122"
    assert len(list(run_dir.glob("*.trace"))) == 8


def test_newest_32_traces_are_kept(run_dir: Path) -> None:
    for number in range(40):
        path = run_dir / f"{number:016x}.trace"
        path.write_text("")
        os.utime(path, (1000 + number, 1000 + number))
    _engine.StatFile().close()
    assert sorted(path.name for path in run_dir.glob("*.trace")) == [
        f"{number:016x}.trace" for number in range(8, 40)
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away: needs root")
def test_traces_of_another_user_push_none_out(run_dir: Path) -> None:
    mine, others = ([f"{first}{number:015x}.trace" for number in range(40)] for first in "ab")
    for number, name in enumerate(mine + others):
        (run_dir / name).write_text("")
        os.utime(run_dir / name, (number * 1000, number * 1000))
        if name in others:
            os.chown(run_dir / name, 12345, -1)
    _engine.StatFile().close()
    assert sorted(path.name for path in run_dir.glob("*.trace")) == mine[8:] + others


def test_damaged_traces_are_refused(run_dir: Path) -> None:
    path = Path(
        in_a_process("""
ring = _engine.Trace(8)
ring.record(1, 1, 0, 0, 0)
print(_engine.dump([ring], b"", 0))
""")
    )
    good = path.read_bytes()
    damaged = run_dir / "damaged"
    for data in (
        b"",
        good[:100],
        good[:1000],
        good[:-1],
        b"x" + good[1:],
        good[:8] + b"\xff" + good[9:],
    ):
        damaged.write_bytes(data)
        with pytest.raises(trace.TraceError, match="damaged"):
            trace.read(damaged)


def false_trace(path: Path, events: int, instances: int, records: int) -> Path:
    """A sparse file costs its author no space."""
    with path.open("wb") as file:
        size = (trace._HEADER.size, trace._EVENT.size)
        numbers = (2, *size, events, instances, 1, 1, 1)
        file.write(trace._HEADER.pack(b"HARPTRCE", *numbers, b"", b"", b""))
        file.write(bytes(trace._DEVICE.size + events * trace._EVENT.size))
        file.write(struct.pack("=Q", records))
        file.truncate(file.tell() + records * trace._RECORD.size + instances * 8)
    return path


def test_large_traces_are_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader takes 420 bytes for a record of 16."""
    read: list[int] = []
    monkeypatch.setattr(trace, "_record", lambda *values: read.append(1))
    for events, instances, records in [(1, 1, 2**20 + 1), (257, 1, 1), (1, 65, 1)]:
        with pytest.raises(trace.TraceError, match=r"more .* than HARP.*damaged"):
            trace.read(false_trace(tmp_path / "large", events, instances, records))
    assert read == []


def test_trace_events_are_documented() -> None:
    assert len(set(EVENTS)) == len(EVENTS)
    for event in _tables.trace_events():
        assert len(event["name"]) < 32 and len(event["a"]) < 16 and len(event["b"]) < 16
        assert event["doc"].endswith(".")
