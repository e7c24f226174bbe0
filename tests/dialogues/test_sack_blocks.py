# SPDX-License-Identifier: Apache-2.0
"""Out-of-order data is reported by SACK (RFC 2018), duplicates by DSACK (RFC 2883)."""

from __future__ import annotations

from scapy.layers.inet import TCP

from harp.testing.dialogue import option


def sacked(packet):
    edges = option(packet, "SAck") or ()
    return list(zip(edges[::2], edges[1::2]))


def test_each_out_of_order_segment_is_sacked_at_once(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(seq=101, ack=1) / (b"b" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(101, 201)]
    d.send(TCP(seq=301, ack=1) / (b"d" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(301, 401), (101, 201)]
    d.send(TCP(seq=501, ack=1) / (b"f" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(501, 601), (301, 401), (101, 201)]
    d.send(TCP(seq=201, ack=1) / (b"c" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(101, 401), (501, 601)]
    d.send(TCP(seq=1, ack=1) / (b"a" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=401))) == [(501, 601)]
    assert c.recv(1000) == b"a" * 100 + b"b" * 100 + b"c" * 100 + b"d" * 100


def test_duplicate_segment_is_reported_by_dsack(either):
    d = either(delayed_ack_us=0)
    d.open_passive()
    d.send(TCP(seq=1, ack=1) / (b"a" * 100))
    assert option(d.expect(TCP(flags="A", ack=101)), "SAck") is None
    d.send(TCP(seq=1, ack=1) / (b"a" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=101))) == [(1, 101)]


def test_overlapping_data_is_delivered_once(either):
    d = either(delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(seq=1, ack=1) / b"abcdef")
    d.expect(TCP(flags="A", ack=7))
    d.send(TCP(seq=4, ack=1) / b"XYZghi")
    d.expect(TCP(flags="A", ack=10))
    assert c.recv(100) == b"abcdefghi"


def test_no_sack_blocks_without_sack_permitted(either):
    d = either()
    d.open_passive(sack=False)
    d.send(TCP(seq=101, ack=1) / (b"b" * 100))
    assert option(d.expect(TCP(flags="A", ack=1)), "SAck") is None


def test_fin_beyond_hole_waits_for_missing_data(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=4, ack=1) / b"def")
    d.expect(TCP(flags="A", ack=1))
    d.send(TCP(flags="A", seq=1, ack=1) / b"abc")
    d.expect(TCP(flags="A", ack=8))
    assert c.recv(100) == b"abcdef"
    assert c.recv(100) == b""


def test_fin_beyond_hole_is_sacked_with_its_data(either):
    d = either()
    d.open_passive()
    d.send(TCP(flags="FA", seq=101, ack=1) / (b"b" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(101, 202)]
    d.send(TCP(flags="FA", seq=101, ack=1) / (b"b" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(101, 202), (101, 202)]
    d.send(TCP(flags="A", seq=1, ack=1) / (b"a" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=202))) == []


def test_fin_after_out_of_order_data_extends_its_sack_block(either):
    d = either()
    d.open_passive()
    d.send(TCP(flags="A", seq=101, ack=1) / (b"b" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(101, 201)]
    d.send(TCP(flags="FA", seq=201, ack=1))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(101, 202)]
    d.send(TCP(flags="FA", seq=201, ack=1))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(201, 202), (101, 202)]


def test_fin_without_adjacent_data_has_its_own_sack_block(either):
    """It has a block of its own: first as it comes, then among the others."""
    d = either()
    d.open_passive()
    d.send(TCP(flags="A", seq=51, ack=1) / (b"b" * 10))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(51, 61)]
    d.send(TCP(flags="FA", seq=101, ack=1))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(101, 102), (51, 61)]
    d.send(TCP(flags="FA", seq=101, ack=1))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(101, 102), (101, 102), (51, 61)]
    d.send(TCP(flags="A", seq=21, ack=1) / (b"a" * 10))
    blocks = sacked(d.expect(TCP(flags="A", ack=1)))
    assert blocks[0] == (21, 31) and sorted(blocks[1:]) == [(51, 61), (101, 102)]
    d.send(TCP(flags="A", seq=61, ack=1) / (b"c" * 40))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(51, 102), (21, 31)]
    d.send(TCP(flags="A", seq=1, ack=1) / (b"d" * 50))
    assert sacked(d.expect(TCP(flags="A", ack=102)))[1:] == []


def test_duplicate_fin_is_reported_by_dsack(either):
    """The DSACK covers the FIN too: the sender needs all of it to undo its reaction."""
    d = either()
    d.open_passive()
    d.send(TCP(flags="FA", seq=1, ack=1) / (b"a" * 100))
    d.expect(TCP(flags="A", ack=102), within=60)
    d.send(TCP(flags="FA", seq=1, ack=1) / (b"a" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=102))) == [(1, 102)]
    d.send(TCP(flags="FA", seq=101, ack=1))
    assert sacked(d.expect(TCP(flags="A", ack=102))) == [(101, 102)]


def test_overlap_with_out_of_order_data_is_reported_by_dsack(either):
    """RFC 2883, 4.1: what lay beyond the hole has come twice."""
    d = either(delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(seq=101, ack=1) / (b"b" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=1))) == [(101, 201)]
    d.send(TCP(seq=1, ack=1) / (b"a" * 100 + b"b" * 50))
    assert sacked(d.expect(TCP(flags="A", ack=201))) == [(101, 151)]
    d.send(TCP(seq=301, ack=1) / (b"d" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=201))) == [(301, 401)]
    d.send(TCP(seq=501, ack=1) / (b"f" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=201))) == [(501, 601), (301, 401)]
    d.send(TCP(seq=201, ack=1) / (b"c" * 100 + b"d" * 100 + b"e" * 100))
    assert sacked(d.expect(TCP(flags="A", ack=601))) == [(301, 401)]
    assert c.recv(1000) == b"".join(bytes([x]) * 100 for x in b"abcdef")


def test_overlap_with_out_of_order_fin_is_reported_by_dsack(either):
    d = either(delayed_ack_us=0)
    d.open_passive()
    d.send(TCP(flags="FA", seq=101, ack=1) / (b"b" * 100))
    d.expect(TCP(flags="A", ack=1))
    d.send(TCP(flags="FA", seq=1, ack=1) / (b"a" * 100 + b"b" * 100))
    blocks = sacked(d.expect(TCP(flags="A", ack=202)))
    # Linux gives up what lies beyond a hole as soon as a FIN comes in order, and tells nothing.
    assert blocks == ([(101, 202)] if d.who == "harp" else [])
