# SPDX-License-Identifier: Apache-2.0
"""The packet port writes payload to the hinted buffer, and corrects a wrong hint."""

from __future__ import annotations

import os
import time

import pytest
from packet_ports import MSS, tcp_frame
from port_probe import ETHERNET, HEADERS, Frame, Probe, Received, arp_request
from scapy.layers.inet import IP, TCP

STRIDE = 20000
HINT = (HEADERS, 4 * STRIDE, STRIDE)


def test_correct_hint_delivers_payload_to_buffer(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    sent = [tcp_frame(a, b, os.urandom(size)) for size in (STRIDE, STRIDE, 5, STRIDE)]
    for one in sent:
        a.send(one, segment=MSS)
    time.sleep(0.05)  # until both frames are there: a burst adapts to recent arrivals
    got = b.receive(2, hint=HINT) + b.receive(2, hint=HINT)
    assert [f.place for f in got] == [0, STRIDE, 0, STRIDE]
    assert [f.header_length for f in got] == [HEADERS] * 4
    assert [f.data[HEADERS:] for f in got] == [one.payload for one in sent]


def test_burst_ends_where_known_places_end(pair: tuple[Probe, Probe]) -> None:
    """The frame at the end tells where later ones belong. Without a place, the first frame does."""
    a, b = pair
    for _ in range(8):
        a.send(tcp_frame(a, b, b"so that the next bursts are long"))
    assert len(b.receive(8)) == 8
    for _ in range(5):
        a.send(tcp_frame(a, b, os.urandom(STRIDE)), segment=MSS)
    time.sleep(0.05)
    bursts = [
        b.receive(8, 0, hint=hint)
        for hint in ((HEADERS, 2 * STRIDE, STRIDE), (HEADERS, 0, STRIDE), (0, 0, 0))
    ]
    assert [[f.place for f in got] for got in bursts] == [[0, STRIDE], [-1], [-1, -1]]


def check_contiguous(got: Received, one: Frame) -> None:
    assert got.place == -1 and got.payload_length == 0
    assert got.data[one.header_length :] == one.payload
    assert got.data[:12] == bytes(one)[:12]


@pytest.mark.parametrize("size", [1, MSS, STRIDE + 1, 60000])
@pytest.mark.parametrize("options", [b"", b"\x01" * 40])
def test_unexpected_header_makes_frame_contiguous(
    pair: tuple[Probe, Probe], size: int, options: bytes
) -> None:
    a, b = pair
    one = tcp_frame(a, b, os.urandom(size), options=options)
    a.send(one, segment=1400)
    (got,) = b.receive(1, hint=HINT)
    check_contiguous(got, one)


@pytest.mark.parametrize("size", [STRIDE + 1, 2 * STRIDE, 64900])
def test_unexpected_length_makes_frame_contiguous(pair: tuple[Probe, Probe], size: int) -> None:
    a, b = pair
    one = tcp_frame(a, b, os.urandom(size))
    a.send(one, segment=MSS)
    (got,) = b.receive(1, hint=HINT)
    check_contiguous(got, one)


@pytest.mark.parametrize(
    ("size", "options"),
    [(STRIDE + 1, b"\x01\x01\x08\x0a" + bytes(8)), (STRIDE + 12, b""), (STRIDE + 1, b"\x01" * 40)],
)
def test_long_payload_moves_next_payload_out_of_buffer(
    pair: tuple[Probe, Probe], size: int, options: bytes
) -> None:
    """A payload longer than its stride needs the next one's place, so the next one moves out of the
    buffer."""
    a, b = pair
    first = tcp_frame(a, b, os.urandom(size), options=options)
    second = tcp_frame(a, b, os.urandom(STRIDE))
    for one in (first, second):
        a.send(one, segment=1400)
    time.sleep(0.05)
    got = b.receive(2, hint=HINT)
    for frame, one in zip(got, (first, second)):
        check_contiguous(frame, one)


def test_other_frames_leave_next_payload_in_buffer(pair: tuple[Probe, Probe]) -> None:
    """A frame that fits its stride leaves the next payload in the buffer."""
    a, b = pair
    request = arp_request(a.info["mac"], a.info["address"], b.info["address"])
    for first in (tcp_frame(a, b), tcp_frame(a, b, bytes(STRIDE), options=b""), request):
        second = tcp_frame(a, b, os.urandom(STRIDE))
        a.send(first, segment=1400)
        a.send(second, segment=MSS)
        time.sleep(0.05)
        got = b.receive(2, hint=HINT)
        assert [frame.place for frame in got] == [-1, STRIDE]


def test_hint_bounds_bytes_written_to_buffer(pair: tuple[Probe, Probe]) -> None:
    """The buffer ends within the second frame's stride: the rest of its payload stays in the
    slot."""
    a, b = pair
    sent = [tcp_frame(a, b, os.urandom(size)) for size in (STRIDE, 100, STRIDE, STRIDE)]
    for one in sent:
        a.send(one, segment=MSS)
    time.sleep(0.05)
    hint = (HEADERS, STRIDE + 100, STRIDE)
    got = b.receive(2, hint=hint)
    assert [f.place for f in got] == [0, STRIDE]
    got += b.receive(2, hint=hint)
    assert [f.place for f in got[2:]] == [0, -1]
    assert [f.data[HEADERS:] for f in got] == [one.payload for one in sent]


def test_hint_with_pure_ack(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    for options in (b"", b"\x01\x01\x08\x0a" + bytes(8), b"\x01" * 40):
        one = tcp_frame(a, b, options=options)
        a.send(one)
        (got,) = b.receive(1, hint=HINT)
        assert got.payload_length == 0 and got.data[:16] == bytes(one)[:16]
        assert len(got.data) == len(bytes(one))


def test_hint_with_arp(pair: tuple[Probe, Probe]) -> None:
    a, b = pair
    request = arp_request(a.info["mac"], a.info["address"], b.info["address"])
    a.send(request)
    (got,) = b.receive(1, hint=(HEADERS, 1000, 1000))
    assert got.data == request and got.payload_length == 0


# -- two places

GAP, NEXT = 24, 2 * STRIDE  # bytes between the places; the second one


def segments_of(got: list[Received]) -> list[tuple[int, int, bytes]]:
    """Sequence number, flags and payload of each frame, whose lengths and sum must be right."""
    found = []
    for frame in got:
        packet = IP(frame.data[14:])
        assert packet.len == len(frame.data) - 14
        assert packet.chksum == IP(bytes(packet)[:2] + bytes(packet)[2:]).chksum
        again = IP(bytes(packet))
        del again.chksum
        assert IP(bytes(again)).chksum == packet.chksum
        found.append((packet[TCP].seq, int(packet[TCP].flags), frame.data[HEADERS:]))
    return found


@pytest.mark.parametrize(
    ("left", "room", "places"),
    [
        (5000, 30000, [0, -1, NEXT]),
        (0, 30000, [-1, NEXT]),
        (30, 30000, [-1, NEXT]),  # too short for a header in its place
        (5000, 3000, [0, -1, NEXT, -1]),
    ],
)
def test_frame_for_two_places_arrives_in_pieces(
    pair: tuple[Probe, Probe], left: int, room: int, places: list[int]
) -> None:
    a, b = pair
    one = tcp_frame(a, b, os.urandom(STRIDE))
    a.send(one, segment=MSS)
    got = b.receive(len(places), hint=(HEADERS, left, STRIDE), second=(GAP, NEXT, room))
    assert [frame.place for frame in got] == places
    assert all(frame.segment == MSS and frame.good for frame in got)
    (first, flags, _), *_ = found = segments_of(got)
    data = b""
    for sequence, also, payload in found:
        assert (sequence, also) == (first + len(data), flags)
        data += payload
    assert data == one.payload


@pytest.mark.parametrize("size", [4000, 5010, 5024 + 2 * HEADERS - 1])
def test_short_frame_stays_in_one_piece(pair: tuple[Probe, Probe], size: int) -> None:
    a, b = pair
    one = tcp_frame(a, b, os.urandom(size))
    a.send(one, segment=MSS)
    (got,) = b.receive(1, hint=(HEADERS, 5000, STRIDE), second=(GAP, NEXT, 30000))
    assert got.place == (0 if size <= 5000 else -1)
    assert got.data[HEADERS:] == one.payload


@pytest.mark.parametrize("options", [b"", b"\x01" * 40])
def test_unexpected_header_makes_frame_for_two_places_contiguous(
    pair: tuple[Probe, Probe], options: bytes
) -> None:
    a, b = pair
    one = tcp_frame(a, b, os.urandom(STRIDE), options=options)
    a.send(one, segment=1400)
    (got,) = b.receive(1, hint=(HEADERS, 5000, STRIDE), second=(GAP, NEXT, 30000))
    check_contiguous(got, one)


@pytest.mark.parametrize("trailer", [4, -4])
def test_frame_of_another_length_than_its_packet_stays_in_one_piece(
    pair: tuple[Probe, Probe], trailer: int
) -> None:
    """The bytes of a trailer, such as a frame check sequence, are not the stream's."""
    a, b = pair
    one = tcp_frame(a, b, os.urandom(STRIDE), trailer=trailer)
    a.send(one, segment=MSS)
    (got,) = b.receive(1, 1.0, hint=(HEADERS, 5000, STRIDE), second=(GAP, NEXT, 30000))
    assert got.good and got.place == -1 and got.payload_length == 0
    assert got.data[ETHERNET + 2 : ETHERNET + 4] == bytes(one)[ETHERNET + 2 : ETHERNET + 4]
    assert got.data[HEADERS:] == bytes(one)[HEADERS:]


def test_burst_ends_with_frame_for_two_places(pair: tuple[Probe, Probe]) -> None:
    """A wrong guess about it would move the frames behind it."""
    a, b = pair
    sent = [tcp_frame(a, b, os.urandom(STRIDE)) for _ in range(4)]
    for one in sent:
        a.send(one, segment=MSS)
    time.sleep(0.05)
    hint, second = (HEADERS, STRIDE + 5000, STRIDE), (GAP, NEXT, 30000)
    got = b.receive(4, hint=hint, second=second)
    assert [frame.place for frame in got] == [0, STRIDE, -1, NEXT]
    assert b"".join(f.data[HEADERS:] for f in got) == sent[0].payload + sent[1].payload
    assert [f.data[HEADERS:] for f in b.receive(2)] == [one.payload for one in sent[2:]]
