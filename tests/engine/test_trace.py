# SPDX-License-Identifier: Apache-2.0
"""The binary trace: what is recorded is what a dump tells."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harp import _tables
from harp.observe import trace
from harp.testing import _engine

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
print(_engine.dump([one, two], b"link 7 failed", 10_000_002_000))
""")
    assert Path(path).suffix == ".trace"
    found = trace.read(Path(path))
    assert found.reason == "link 7 failed"
    assert found.release == _tables.version()
    assert [(one.instance, one.flow, one.event, one.values) for one in found.records] == [
        (0, None, "poll", {"frames_in": 1, "frames_out": 2}),
        (1, 65534, "chunk_in", {"length": 1000, "offset": 2000}),
        (0, 3, "rto", {"backoff": 0xFFFFFF, "sequence": 0xFFFFFFFF}),
    ]
    assert abs(found.written_ns / 1e9 - time.time()) < 60
    assert [found.written_ns - one.time_ns for one in found.records] == [2000, 1500, 1000]


def test_trace_addresses_are_shown_dotted(run_dir: Path) -> None:
    events = [EVENTS.index(name) for name in ("connect", "accept", "established", "stranger")]
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


def test_trace_events_are_documented() -> None:
    assert len(set(EVENTS)) == len(EVENTS)
    for event in _tables.trace_events():
        assert len(event["name"]) < 32 and len(event["a"]) < 16 and len(event["b"]) < 16
        assert event["doc"].endswith(".")
