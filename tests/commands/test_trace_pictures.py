# SPDX-License-Identifier: Apache-2.0
"""harp trace draws a flow of a trace as a time-sequence graph."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from harp import _tables
from harp.observe import trace
from harp.observe.trace_sequence import NoFlow, choose, connections

EVENTS = [event["name"] for event in _tables.trace_events()]
PEER = int.from_bytes(bytes((10, 1, 3, 2)), "little")
MS = 10**6
WRAP = 2**32
NEAR_WRAP = WRAP - 3000  # a connection that has sent almost 4 GiB before the trace begins

# ms, flow, event, a, b
DIED = [
    (0, 40000, "connect", 50000, PEER),
    (1, 40000, "established", 1448, PEER),
    (2, 40000, "acked", 64, 0),
    (3, 40000, "sent", 64, 0),
    (4, 40000, "sent", 30000, 64),
    (5, 40000, "acked", 32, 64),
    (6, 40000, "lost", 1448, 64),
    (6, 40000, "recovery", 10, 30064),
    (7, 40000, "retransmit", 1448, 64),
    (8, 40001, "sent", 2000, NEAR_WRAP),
    (9, 40001, "acked", 8, (NEAR_WRAP + 2000) % WRAP),
    (10, 40001, "sent", 9000, (NEAR_WRAP + 2000) % WRAP),
    (11, 40001, "sent", 1000, (NEAR_WRAP + 11000) % WRAP),
    (12, 65535, "carrier_lost", 0, 0),
    (300, 40000, "rto", 1, 64),
    (301, 40002, "acked", 1, 0),
]


@pytest.fixture
def dump(folders: Path) -> Path:
    calls = "; ".join(
        f"ring.record({ms * MS}, {flow}, {EVENTS.index(name)}, {a}, {b})"
        for ms, flow, name, a, b in DIED
    )
    code = f"""
from harp.testing import _engine
ring = _engine.Trace(64); {calls}
print(_engine.dump([ring], b"the link <7> failed", {1000 * MS}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return Path(done.stdout.strip())


def test_events_become_sequences(dump: Path) -> None:
    one = choose(trace.read(dump))
    assert (one.flow, one.peer, one.sent) == (40000, "10.1.3.2:50000", 30064)
    seen = one.seen
    assert seen.data == [(3 * MS, 0, 64), (4 * MS, 64, 30064)]
    assert seen.lost == [(6 * MS, 64, 1512)] and seen.again == [(7 * MS, 64, 1512)]
    assert seen.ack == [(2 * MS, 0), (5 * MS, 64)]
    assert seen.edge == [(2 * MS, 64 << 10), (5 * MS, 64 + (32 << 10))]
    assert [word for _, word in seen.marks] == ["established", "recovery", "carrier_lost", "rto"]


def test_sequence_numbers_go_on_beyond_4_gib(dump: Path) -> None:
    one = choose(trace.read(dump), 40001)
    assert (one.base, one.peer) == (NEAR_WRAP, "")
    assert [span[1:] for span in one.seen.data] == [(0, 2000), (2000, 11000), (11000, 12000)]
    assert one.seen.ack == [(9 * MS, 2000)]


def test_flow_without_data_is_named_with_those_that_have_some(dump: Path) -> None:
    found = trace.read(dump)
    assert [one.flow for one in connections(found)] == [40000, 40001]
    with pytest.raises(NoFlow, match="flow 40002 has sent no data .*: 40000, 40001"):
        choose(found, 40002)
    older = [one for one in found.records if one.event == "rto"]  # as of an older release
    with pytest.raises(NoFlow, match="shows no data that was sent"):
        choose(trace.Trace(1, "h", "", "1", "", 1, older))


def test_picture_has_each_series_and_its_marks(harp: Any, dump: Path, folders: Path) -> None:
    target = folders / "picture.svg"
    said = harp("trace", str(dump), "--write", str(target)).stdout
    assert said.startswith(f"{target}: flow 40000 to 10.1.3.2:50000: 30,064 bytes sent in 2 pieces")
    root = ElementTree.parse(target).getroot()
    drawn = {one.get("class"): str(one.get("d")) for one in root.iter() if one.get("class")}
    assert {"data", "again", "lost", "ack", "edge", "mark"} <= set(drawn)
    args = [str(one.text) for one in root.iter() if one.text]
    assert {"recovery", "carrier_lost", "rto"} <= set(args)
    assert any("the link <7> failed" in word for word in args)
    # The axis goes on to the end of the trace: silence is visible.
    x = {one.text: float(one.get("x", 0)) for one in root.iter() if one.text in ("0", "1000")}
    assert x["1000"] > 1100 > 200 > x["0"]
    assert harp("trace", str(dump), "--write", "-").stdout == target.read_text()


def test_faults_are_named(harp: Any, dump: Path, folders: Path) -> None:
    listed = harp("trace", str(dump), "--list").stdout.splitlines()
    assert [line.split(" ")[1].rstrip(":") for line in listed] == ["40000", "40001"]
    assert "these have: 40000, 40001" in harp("trace", str(dump), "--flow", "7", code=1).stderr
    assert "not a trace of HARP's" in harp("trace", "/etc/passwd", code=1).stderr
    assert "No such file" in harp("trace", "/absent", code=1).stderr
    target = str(folders / "absent/x.svg")
    assert "name another file with --write" in harp("trace", str(dump), "-w", target, code=1).stderr
