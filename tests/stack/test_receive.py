# SPDX-License-Identifier: Apache-2.0
"""Data that arrives in order, and when it is acknowledged (RFC 9293, 3.8.6; RFC 5681, 4.2)."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP

from harp.testing.flights import MSS, read_all
from harp.testing.wire import pattern


def test_in_order_data_is_delivered(dialogue):
    d = dialogue()
    c = d.open_passive()
    assert c.poll() & 1 == 0
    d.send(TCP(flags="PA", seq=1, ack=1) / b"hello ")
    d.send(TCP(flags="PA", seq=7, ack=1) / b"world")
    assert c.poll() & 1
    assert c.recv(3) == b"hel"
    assert c.recv(100) == b"lo world"
    assert c.poll() & 1 == 0


def test_msg_peek_leaves_data(dialogue):
    import socket

    d = dialogue()
    c = d.open_passive()
    d.send(TCP(seq=1, ack=1) / b"data")
    assert c.recv(2, socket.MSG_PEEK) == b"da"
    assert c.recv(100) == b"data"


def test_every_second_full_segment_is_acknowledged_at_once(dialogue):
    d = dialogue()
    d.open_passive()
    for pair in range(3):
        first = 1 + pair * 2920
        d.send(TCP(seq=first, ack=1) / (b"a" * 1460))
        d.silence()
        d.send(TCP(seq=first + 1460, ack=1) / (b"b" * 1460))
        d.expect(TCP(flags="A", seq=1, ack=first + 2920))


@pytest.mark.parametrize("delay_ms", [10, 40, 200])
def test_single_segment_waits_for_delayed_ack_timer(dialogue, delay_ms):
    d = dialogue(delayed_ack_us=delay_ms * 1000)
    d.open_passive()
    began = d.now
    d.send(TCP(seq=1, ack=1) / (b"a" * 1460))
    d.silence()
    d.expect(TCP(flags="A", seq=1, ack=1461), at=began + delay_ms)
    d.silence(during=5000)


def test_delayed_ack_counts_from_first_unacked_byte(dialogue):
    """RFC 1122, 4.2.3.2: the delay counts from the first unacknowledged byte, 0.5 s at most."""
    d = dialogue(delayed_ack_us=100_000)
    d.open_passive()
    began = d.now
    for i in range(5):
        d.strict = False
        d.send(TCP(seq=1 + i, ack=1) / b"x", at=began + 15 * i)
    d.expect(TCP(flags="A"), at=None if d._queue else began + 100)


def test_small_pushed_segments_wait_for_delayed_ack(dialogue):
    """A short segment with PSH may be one short write: its ACK waits for the delayed-ACK timer."""
    d = dialogue()
    d.open_passive()
    d.send(TCP(seq=1, ack=1) / (b"a" * 1460))
    d.expect(TCP(flags="A", ack=1461), within=60)
    for last in (2061, 2661, 3261):
        d.send(TCP(flags="PA", seq=last - 600, ack=1) / (b"b" * 300))
        d.send(TCP(flags="PA", seq=last - 300, ack=1) / (b"c" * 300))
        d.silence(during=30)
        d.expect(TCP(flags="A", ack=last), within=20)


def test_alternating_sizes_do_not_lower_rcv_mss_estimate(dialogue):
    """Only what comes twice in a row tells of the path."""
    d = dialogue()
    d.open_passive()
    d.send(TCP(seq=1, ack=1) / (b"a" * 1460))
    d.expect(TCP(flags="A", ack=1461), within=60)
    for last in (2661, 3861, 5061):
        d.send(TCP(flags="A", seq=last - 1200, ack=1) / (b"b" * 700))
        d.send(TCP(flags="A", seq=last - 500, ack=1) / (b"c" * 500))
        d.silence(during=30)
        d.expect(TCP(flags="A", ack=last), within=20)


def test_acks_after_filled_hole_are_immediate(dialogue):
    """A sender in recovery has a small window: nothing but an acknowledgement lets it go on."""
    d = dialogue(delayed_ack_us=100_000)
    d.open_passive()
    d.send(TCP(flags="A", seq=1461, ack=1) / (b"y" * 1460))
    d.expect(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1) / (b"x" * 1460))
    d.expect(TCP(flags="A", seq=1, ack=2921))
    for last in range(2921 + 1460, 2921 + 1460 * 16, 1460):
        d.send(TCP(flags="A", seq=last - 1460, ack=1) / (b"z" * 1460))
        d.expect(TCP(flags="A", seq=1, ack=last))
    d.send(TCP(flags="A", seq=last, ack=1) / (b"z" * 1460))
    d.silence(during=50)
    d.expect(TCP(flags="A", seq=1, ack=last + 1460), within=60)


def test_zero_delayed_ack_acks_every_segment(dialogue):
    d = dialogue(delayed_ack_us=0)
    d.open_passive()
    for i in range(4):
        d.send(TCP(seq=1 + i, ack=1) / b"x")
        d.expect(TCP(flags="A", seq=1, ack=2 + i))
    d.silence(during=5000)


def test_ack_is_piggybacked_on_data(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(seq=1, ack=1) / b"question")
    d.silence()
    c.send(b"answer")
    d.expect(TCP(seq=1, ack=9) / b"answer")
    d.send(TCP(seq=9, ack=7))
    d.silence(during=5000)


def test_window_shrinks_by_unread_data(dialogue):
    d = dialogue(rcvbuf=20_000, delayed_ack_us=0)
    d.open_passive()
    windows = []
    for i in range(5):
        d.send(TCP(seq=1 + i * 1460, ack=1) / (b"a" * 1460))
        windows.append(d.expect(TCP(flags="A", ack=1461 + i * 1460))[TCP].window)
    drops = [a - b for a, b in zip(windows, windows[1:])]
    assert windows[0] <= 20_000
    assert all(0 <= drop <= 1460 for drop in drops)


def test_right_window_edge_never_moves_back(dialogue):
    """RFC 9293, 3.8.6.2.1 (SHLD-14)."""
    d = dialogue(rcvbuf=20_000, delayed_ack_us=0)
    c = d.open_passive()
    edge, seq = 0, 1
    for i in range(40):
        size = (1460, 1, 700, 100)[i % 4]
        d.send(TCP(seq=seq, ack=1) / (b"a" * size))
        answer = d.drain()[-1]
        if answer[TCP].ack == seq + size:
            seq += size
        assert answer[TCP].ack + answer[TCP].window >= edge
        edge = answer[TCP].ack + answer[TCP].window
        if i % 7 == 3:
            read_all(c)
            for update in d.drain():
                assert update[TCP].ack + update[TCP].window >= edge
                edge = update[TCP].ack + update[TCP].window


def test_overlapping_data_is_delivered_once(dialogue):
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(seq=1, ack=1) / b"abcdef")
    d.expect(TCP(ack=7))
    d.send(TCP(seq=4, ack=1) / b"defghi")
    d.expect(TCP(ack=10))
    assert c.recv(100) == b"abcdefghi"


def test_first_copy_of_overlapping_byte_is_kept(dialogue):
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(seq=1, ack=1) / b"abc")
    d.expect(TCP(ack=4))
    d.send(TCP(seq=1, ack=1) / b"XXXdef")
    d.expect(TCP(ack=7))
    assert c.recv(100) == b"abcdef"


def test_duplicate_segment_is_acked_at_once(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(seq=1, ack=1) / b"abc")
    d.expect(TCP(ack=4), within=500)
    d.send(TCP(seq=1, ack=1) / b"abc")
    d.expect(TCP(flags="A", seq=1, ack=4))
    assert c.recv(100) == b"abc"


def test_data_beyond_window_is_dropped(dialogue):
    d = dialogue(rcvbuf=4380, delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(seq=1, ack=1) / (b"a" * 1460))
    answer = d.expect(TCP(flags="A", ack=1461))
    edge = answer[TCP].ack + answer[TCP].window
    d.send(TCP(seq=edge, ack=1) / b"outside")
    d.expect(TCP(flags="A", seq=1, ack=1461))
    d.send(TCP(seq=edge + 100_000, ack=1) / b"far outside")
    d.expect(TCP(flags="A", seq=1, ack=1461))
    assert read_all(c) == b"a" * 1460


@pytest.mark.parametrize("text", [b"", b"outside"])
@pytest.mark.parametrize("where", [100_000, -100_000])
def test_ack_of_unacceptable_segment_is_not_processed(dialogue, where, text):
    """RFC 9293, 3.10.7.4, first: such a segment is answered, and not looked at any further."""
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    c.send(b"x" * 100)
    d.expect(TCP(seq=1) / (b"x" * 100))
    sent = d.now
    d.send(TCP(flags="A", seq=where, ack=101, window=0) / text, at=sent + 10)
    d.expect(TCP(flags="A", seq=101, ack=1))
    d.expect(TCP(seq=1) / (b"x" * 100), within=500)


@pytest.mark.parametrize("timestamps", [False, True])
def test_data_is_trimmed_to_window(dialogue, timestamps):
    """RFC 9293, 3.10.7.4: the part within may be used; the rest must not be acknowledged."""
    d = dialogue(rcvbuf=4000, delayed_ack_us=0, timestamps=int(timestamps))
    c = d.open_passive(timestamps=timestamps)
    data = pattern(0, 12_000)
    seq, edge = 0, 4000
    for _ in range(4):
        d.send(TCP(seq=1 + seq, ack=1) / data[seq : seq + 1460])
        answer = d.expect(TCP(flags="A"))
        seq = answer[TCP].ack - 1
        assert seq <= edge
        edge = seq + answer[TCP].window
    assert read_all(c) == data[:seq]


def test_fin_beyond_trimmed_data_is_not_processed(dialogue):
    """Data beyond the window is trimmed, and so is the FIN after it."""
    d = dialogue(rcvbuf=4000, delayed_ack_us=0)
    c = d.open_passive()
    data = pattern(0, 6000)
    for at in (0, 1460):
        d.send(TCP(seq=1 + at, ack=1) / data[at : at + 1460])
        d.expect(TCP(flags="A", ack=1461 + at))
    d.send(TCP(flags="FA", seq=2921, ack=1) / data[2920:4380])
    taken = d.expect(TCP(flags="A"))[TCP].ack - 1
    assert taken < 4380
    assert read_all(c) == data[:taken]
    with pytest.raises(BlockingIOError):
        c.recv(1)
    d.ignore(until=d.now + 10)
    d.send(TCP(flags="FA", seq=1 + taken, ack=1) / data[taken:4380])
    d.expect(TCP(flags="A", ack=4382))
    assert read_all(c) == data[taken:4380]
    assert c.recv(1) == b""


def test_pure_acks_are_not_acked(dialogue):
    d = dialogue(delayed_ack_us=0)
    d.open_passive()
    for _ in range(10):
        d.send(TCP(flags="A", seq=1, ack=1))
    d.silence(during=1000)


def test_a_segment_without_ack_is_dropped(dialogue):
    """RFC 9293, 3.10.7.4, fifth: if the ACK bit is off, drop the segment."""
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(flags="P", seq=1) / b"no ack")
    d.silence()
    with pytest.raises(BlockingIOError):
        c.recv(100)


def test_urgent_data_stays_in_the_stream(dialogue):
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(flags="UA", seq=1, ack=1, urgptr=3) / b"abcdef")
    d.expect(TCP(flags="A", ack=7))
    assert c.recv(100) == b"abcdef"


def test_unread_data_survives_the_peers_fin(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="FPA", seq=1, ack=1) / b"last words")
    d.expect(TCP(flags="A", ack=12))
    assert c.recv(4) == b"last"
    assert c.recv(100) == b" words"
    assert c.recv(100) == b""
    assert c.recv(100) == b""


def test_duplicate_without_sack_causes_no_further_acks(dialogue):
    """Only SACK has blocks that need a bare ACK beside the data."""
    d = dialogue(sack=0, delayed_ack_us=0)
    c = d.open_passive(sack=False, window=MSS)
    for _ in range(2):
        d.send(TCP(flags="A", seq=1, ack=1, window=MSS) / b"abc")
        d.expect(TCP(flags="A", seq=1, ack=4))
    c.send(bytes(3 * MSS))
    d.expect(TCP(seq=1, ack=4), length=MSS)
    for i in range(2):
        d.send(TCP(flags="A", seq=4 + 3 * i, ack=1 + (i + 1) * MSS, window=MSS) / b"def")
        d.expect(TCP(seq=1 + (i + 1) * MSS, ack=7 + 3 * i), length=MSS)
        d.silence()
