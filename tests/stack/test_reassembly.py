# SPDX-License-Identifier: Apache-2.0
"""Data out of order: reassembly, SACK blocks (RFC 2018), DSACK (RFC 2883), bounds."""

from __future__ import annotations

import random
import time

import pytest
from scapy.layers.inet import TCP

from harp.testing.flights import blocks, read_all
from harp.testing.wire import pattern


def test_hole_is_sacked_and_filled(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(seq=1461, ack=1) / (b"b" * 1460))
    answer = d.expect(TCP(flags="A", seq=1, ack=1))
    assert blocks(answer) == [(1461, 2921)]
    with pytest.raises(BlockingIOError):
        c.recv(10)
    d.send(TCP(seq=1, ack=1) / (b"a" * 1460))
    answer = d.expect(TCP(flags="A", seq=1, ack=2921))
    assert blocks(answer) == []
    assert read_all(c) == b"a" * 1460 + b"b" * 1460


def test_each_out_of_order_segment_is_sacked_at_once(dialogue):
    """RFC 5681, 4.2: so that the peer can count duplicates."""
    d = dialogue()
    d.open_passive()
    for i in range(1, 5):
        d.send(TCP(seq=1 + i * 1460, ack=1) / (b"x" * 1460))
        answer = d.expect(TCP(flags="A", seq=1, ack=1))
        assert blocks(answer) == [(1461, 1461 + i * 1460)]


def test_newest_sack_block_comes_first(dialogue):
    """RFC 2018, 4: the first block holds the segment that caused the acknowledgement."""
    d = dialogue()
    d.open_passive()
    d.send(TCP(seq=101, ack=1) / (b"x" * 50))
    assert blocks(d.expect(TCP(ack=1))) == [(101, 151)]
    d.send(TCP(seq=301, ack=1) / (b"x" * 50))
    assert blocks(d.expect(TCP(ack=1))) == [(301, 351), (101, 151)]
    d.send(TCP(seq=201, ack=1) / (b"x" * 50))
    assert blocks(d.expect(TCP(ack=1))) == [(201, 251), (301, 351), (101, 151)]
    d.send(TCP(seq=151, ack=1) / (b"x" * 10))
    assert blocks(d.expect(TCP(ack=1)))[0] == (101, 161)


def test_sack_blocks_fit_header(dialogue):
    """40 bytes of options hold four blocks, with timestamps three (picotcp #76)."""
    for timestamps, most in ((False, 4), (True, 3)):
        d = dialogue(timestamps=1)
        d.open_passive(timestamps=timestamps)
        for i in range(1, 8):
            d.send(TCP(seq=1 + 100 * i, ack=1) / b"x")
            answer = d.expect(TCP(flags="A", seq=1, ack=1))
            assert len(blocks(answer)) == min(i, most)


def test_filled_middle_hole_joins_sack_blocks(dialogue):
    d = dialogue()
    d.open_passive()
    d.send(TCP(seq=101, ack=1) / (b"x" * 100))
    d.expect(TCP(ack=1))
    d.send(TCP(seq=301, ack=1) / (b"x" * 100))
    d.expect(TCP(ack=1))
    d.send(TCP(seq=201, ack=1) / (b"x" * 100))
    assert blocks(d.expect(TCP(ack=1))) == [(101, 401)]


def test_segment_may_cover_several_sack_blocks(dialogue):
    d = dialogue()
    c = d.open_passive()
    data = pattern(0, 1000)
    for start, end in ((100, 200), (300, 400), (500, 600)):
        d.send(TCP(seq=1 + start, ack=1) / data[start:end])
        d.expect(TCP(ack=1))
    d.send(TCP(seq=51, ack=1) / data[50:650])
    # What came twice may be reported in front (RFC 2883, 4.2.1).
    assert (51, 651) in blocks(d.expect(TCP(ack=1)))[:2]
    d.send(TCP(seq=1, ack=1) / data[:120])
    d.expect(TCP(ack=651))
    assert read_all(c) == data[:650]


def test_dsack_precedes_data(dialogue):
    """The acknowledgement of data alone would tell that a tail loss probe has repaired a loss."""
    d = dialogue()
    c = d.open_passive(window=0)
    d.send(TCP(seq=6, ack=1, window=0) / b"world")
    d.expect(TCP(flags="A", ack=1))
    c.send(b"answer")
    d.send(TCP(seq=6, ack=1) / b"world")  # again, and with an open window
    assert blocks(d.expect(TCP(flags="A", ack=1))) == [(6, 11), (6, 11)]
    d.expect(TCP(seq=1) / b"answer")


def test_duplicate_segment_is_reported_by_dsack(dialogue):
    """RFC 2883, 4.1: what came twice, once, in the first block."""
    d = dialogue()
    d.open_passive()
    d.send(TCP(seq=1, ack=1) / (b"a" * 1460))
    d.send(TCP(seq=1461, ack=1) / (b"b" * 1460))
    d.expect(TCP(ack=2921))
    d.send(TCP(seq=1461, ack=1) / (b"b" * 1460))
    assert blocks(d.expect(TCP(flags="A", ack=2921))) == [(1461, 2921)]
    d.send(TCP(seq=2921, ack=1) / b"c")
    assert blocks(d.expect(TCP(flags="A", ack=2922), within=500)) == []


def test_dsack_of_out_of_order_duplicate_precedes_its_block(dialogue):
    """RFC 2883, 4.1.2: the duplicate first, then the block that contains it."""
    d = dialogue()
    d.open_passive()
    d.send(TCP(seq=101, ack=1) / (b"x" * 100))
    d.expect(TCP(ack=1))
    d.send(TCP(seq=201, ack=1) / (b"x" * 100))
    d.expect(TCP(ack=1))
    d.send(TCP(seq=201, ack=1) / (b"x" * 100))
    assert blocks(d.expect(TCP(ack=1))) == [(201, 301), (101, 301)]


def test_fin_beyond_hole_waits_for_missing_data(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=6, ack=1) / b"world")
    d.expect(TCP(flags="A", ack=1))
    with pytest.raises(BlockingIOError):
        c.recv(10)
    d.send(TCP(seq=1, ack=1) / b"hello")
    d.expect(TCP(flags="A", ack=12))
    assert c.recv(100) == b"helloworld"
    assert c.recv(100) == b""


def test_bare_fin_beyond_hole_waits_for_missing_data(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=6, ack=1))
    d.expect(TCP(flags="A", ack=1))
    d.send(TCP(seq=1, ack=1) / b"hello")
    d.expect(TCP(flags="A", ack=7))
    assert c.recv(100) == b"hello"
    assert c.recv(100) == b""


def test_bare_fin_beyond_hole_is_sacked_before_data(dialogue):
    """Data has no room for blocks: a bare acknowledgement precedes it."""
    d = dialogue(initial_window=1)
    c = d.open_passive()
    c.send(bytes(2000))
    d.expect(TCP(seq=1), length=1460)
    d.send(TCP(flags="FA", seq=6, ack=1461))
    assert blocks(d.expect(TCP(flags="A", seq=1461, ack=1))) == [(6, 7)]
    d.expect(TCP(seq=1461, ack=1), length=540)


@pytest.mark.parametrize("seed", range(6))
def test_any_order_and_overlap_gives_same_stream(dialogue, seed):
    r = random.Random(seed)
    d = dialogue(packets=2048, delayed_ack_us=0)
    c = d.open_passive()
    data = pattern(seed, 40_000)
    pieces = []
    at = 0
    while at < len(data):
        size = r.choice((1, 7, 100, 536, 1160))
        pieces.append((max(0, at - r.randrange(300)), min(len(data), at + size)))
        at += size
    pieces += r.sample(pieces, len(pieces) // 4)
    got, acked = b"", 1
    for _ in range(20):
        r.shuffle(pieces)
        for start, end in pieces:
            d.send(TCP(seq=1 + start, ack=1) / data[start:end])
            acked = d.drain()[-1][TCP].ack
        got += read_all(c)
        d.ignore()
        if acked == len(data) + 1:
            break
    assert got == data


def test_tiny_out_of_order_segments_have_bounded_cost(dialogue):
    """CVE-2018-5390: thousands of holes; the stack may forget, must go on, must not slow down."""
    d = dialogue(packets=256, rcvbuf=65_535)
    c = d.open_passive()
    d.strict = False
    order = list(range(1, 65_000, 3))
    random.Random(7).shuffle(order)
    frames = [d.build(TCP(seq=1 + i, ack=1) / b"x") for i in order[:1500]]
    began = time.process_time()
    for frame in frames * 20:
        d.stack.input(frame)
    assert time.process_time() - began < 5  # 30,000 segments: well below a second
    d.stack.take()
    data = b"y" * 20_000
    at = 0
    for _ in range(100):
        d.send(TCP(seq=1 + at, ack=1) / data[at : at + 1000])
        at = d.drain()[-1][TCP].ack - 1
        read_all(c)
        if at >= len(data):
            break
    assert at >= len(data)


def test_in_order_data_always_finds_packet_memory(dialogue):
    """With few packets the pieces beyond a hole go first; the hole can always be filled."""
    d = dialogue(packets=64, rcvbuf=65_535)
    c = d.open_passive()
    d.strict = False
    for i in range(40):
        d.send(TCP(seq=1 + 1460 * (i + 1), ack=1) / (b"x" * 1460))
    d.ignore()
    received = 0
    for i in range(41):
        start = 1460 * i
        d.send(TCP(seq=1 + start, ack=1) / (b"x" * 1460))
        acked = d.drain(until=d.now + 50)
        received += len(read_all(c))
        if acked and acked[-1][TCP].ack >= 1 + 1460 * 41:
            break
    d.ignore()
    assert received == 1460 * 41


def test_reassembly_works_without_sack(dialogue):
    d = dialogue(sack=0)
    c = d.open_passive(sack=True)
    d.send(TCP(seq=6, ack=1) / b"world")
    answer = d.expect(TCP(flags="A", ack=1))
    assert blocks(answer) == []
    d.send(TCP(seq=1, ack=1) / b"hello")
    d.expect(TCP(flags="A", ack=11))
    assert c.recv(100) == b"helloworld"
