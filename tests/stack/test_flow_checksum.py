# SPDX-License-Identifier: Apache-2.0
"""The stack verifies a checksum while it copies the payload to its place."""

from __future__ import annotations

import pytest
from flow_pair import pair

from harp.testing.device import FlowTransfer, connect_flows, finish
from harp.testing.wire import Impairment, pattern


def test_checksum_is_verified_while_copying(wire):
    """One pass copies the payload and computes its checksum; only correct payload is delivered."""
    faults = Impairment(drop=0.02, duplicate=0.02, reorder=0.03, corrupt=0.05, seed=9)
    w, a, b = pair(wire, impair=faults)
    one, other = connect_flows(w, a, b)
    size = 400_000
    other.places = bytearray(size)
    w.run([FlowTransfer(one, other, size)])
    counters = b.stack.counters()
    assert counters["rx_drop_checksum"] > 5
    assert counters["rx_software_checksums"] > 50
    assert other.received == pattern(0, size)
    placed = sum(x == y for x, y in zip(other.places, other.received))
    assert placed > counters["rx_software_checksums"] * 1000


def open_to_places(wire):
    """(sender, receiver with places for more than a segment, the sender's next frame)"""
    w, a, b = pair(wire)
    one, other = connect_flows(w, a, b)
    w.run([FlowTransfer(one, other, 5000, close=False)])
    other.places = bytearray(b"\xee" * 7000)
    a.stack.take(), b.stack.take()
    one.push(b"x" * 1000)
    a.stack.flush()
    (frame,) = [wire for frame in a.stack.take() for wire in finish(frame, 0)]
    return one, other, frame


def changed(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 0x01]) + frame[at + 1 :]


TCP_AT, PAYLOAD_AT = 20, 52
HEADER_BYTES = {"sequence": 7, "acknowledgement": 11, "window": 15, "checksum": 17, "time": 27}


@pytest.mark.parametrize("at", [PAYLOAD_AT, PAYLOAD_AT + 999])
def test_damaged_segment_writes_only_bytes_still_expected(wire, at):
    one, other, frame = open_to_places(wire)
    other.stack.receive(changed(frame, at))
    other.stack.flush()
    assert (len(other.received), other.stack.take()) == (5000, [])
    assert other.places[:5000] == b"\xee" * 5000 and other.places[6000:] == b"\xee" * 1000
    assert other.stack.counters()["rx_drop_checksum"] == 1
    other.stack.receive(frame)
    assert other.received[5000:] == other.places[5000:6000] == b"x" * 1000
    assert other.stack.counters()["rx_software_checksums"] == 1


@pytest.mark.parametrize("field", HEADER_BYTES)
def test_damaged_header_changes_no_state(wire, field):
    one, other, frame = open_to_places(wire)
    before = other.view()
    other.stack.receive(changed(frame, TCP_AT + HEADER_BYTES[field]))
    other.stack.flush()
    assert other.view() == before and other.stack.take() == []
    assert other.places[:5000] == b"\xee" * 5000 and other.places[6000:] == b"\xee" * 1000
    other.stack.receive(frame)
    assert other.received[5000:] == b"x" * 1000


def test_segment_too_large_for_buffer_is_summed_first(wire):
    one, other, frame = open_to_places(wire)
    other.places = bytearray(5999)
    other.stack.receive(frame)
    assert other.received[5000:] == b"x" * 1000 and other.places == bytes(5999)
    assert "rx_software_checksums" not in other.stack.counters()
