# SPDX-License-Identifier: Apache-2.0
"""Windows that close, open and stay small: RFC 9293, 3.8.6."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import Sink, make_stack, payload
from harp.testing.flights import MSS, ack, numbers, read_all, send_flight, seq
from harp.testing.wire import Transfer, connect_pair, pattern


def data_bytes(packets) -> int:
    return sum(len(payload(p)) for p in packets)


def finish(d, size: int, window=65535) -> bytes:
    """The peer takes and acknowledges until so many bytes have come; returns them."""
    sink = Sink()
    d.strict = False
    d.send(TCP(flags="A", seq=1, ack=1, window=window))
    for _ in range(200):
        if sink.take(d.drain(until=d.now + 20)):
            d.send(TCP(flags="A", seq=1, ack=sink.ack, window=window))
        if len(sink.data) >= size:
            return sink.data
    d.fail(f"only {len(sink.data)} of {size} bytes came")


# The sender


def test_zero_window_gets_only_probes(dialogue):
    d = dialogue()
    c = d.open_passive(window=0, rtt=20)
    c.send(b"x" * 5000)
    d.silence()
    probes = d.drain(until=d.now + 100_000)
    # A byte that the peer has to answer for, each time (RFC 9293, 3.8.6.1; picotcp #126).
    assert len(probes) > 3
    assert {(p[TCP].seq, len(payload(p))) for p in probes} == {(1, 1)}


def test_zero_window_probes_back_off(dialogue):
    """RFC 9293, 3.8.6.1: the first after an RTO, then exponentially (MUST-36, SHLD-29, 30)."""
    d = dialogue(rto_min_us=200_000, rto_max_us=60_000_000)
    c = d.open_passive(window=0, rtt=20)
    c.send(b"x" * 5000)
    d.silence(during=150)
    times = []
    while len(times) < 6 and d.now < 60_000:
        for p in d.drain(until=d.now + 1):
            times.append(p.time)
            d.send(TCP(flags="A", seq=1, ack=1, window=0))
    pauses = [b - a for a, b in zip(times, times[1:])]
    assert len(pauses) == 5
    for a, b in zip(pauses, pauses[1:]):
        assert b >= 1.8 * a


def test_answered_zero_window_probes_keep_connection_open(dialogue):
    """RFC 9293, 3.8.6.1 (MUST-37): as long as it answers, the connection stays."""
    d = dialogue()
    c = d.open_passive(window=0, rtt=20)
    c.send(b"hello")
    d.strict = False
    while d.now < 3_600_000:
        if d.drain(until=d.now + 1000):
            d.send(TCP(flags="A", seq=1, ack=1, window=0))
    assert c.error() == 0
    opened = d.now
    assert finish(d, 5, window=5000) == b"hello"
    assert d.now - opened <= 100


def test_opened_window_gets_tail_loss_probe(dialogue):
    """Not only what the timeout sends: that waits much longer, here three seconds."""
    d = dialogue(rto_min_us=3_000_000)
    c = d.open_passive(rtt=50)
    send_flight(d, c)
    d.send(TCP(flags="A", seq=1, ack=1, window=0), at=d.now + 50)
    d.silence(during=300)
    d.send(ack(0))
    d.silence(during=90)
    d.expect(TCP(seq=seq(9)), length=MSS, within=20)


def test_opened_window_restarts_rto(dialogue):
    """The last window probe has set the timer to many seconds, and nothing is unsent."""
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=50)
    send_flight(d, c)
    d.strict = False
    d.run(d.now + 150)  # the tail loss probe comes before the window closes
    for _ in range(170):
        d.send(TCP(flags="A", seq=1, ack=1, window=0), at=d.now + 100)
    d.ignore()
    d.send(ack(0))
    assert 0 in numbers(d.drain(until=d.now + 400)), d.render()


def test_reordered_ack_updates_window_by_its_ack(dialogue):
    """The segment with the higher acknowledgement sets the window, even with a lower sequence."""
    d = dialogue()
    c = d.open_passive(window=4000, rtt=20)
    c.send(b"x" * 20_000)
    d.drain(until=d.now + 5)
    d.strict = False
    d.send(TCP(flags="A", seq=101, ack=1, window=4000) / (b"y" * 100))
    d.send(TCP(flags="A", seq=1, ack=2921, window=1500) / (b"z" * 100))
    sent = d.drain(until=d.now + 1000)
    assert 2921 < max(p[TCP].seq + len(payload(p)) for p in sent) <= 2921 + 1500


def test_retransmitted_segment_updates_window_by_its_ack(dialogue):
    """A segment that fills a hole acknowledges more than one that came before it, and has the
    lower number: the other's window, late, counts from what it acknowledges itself."""
    d = dialogue()
    c = d.open_passive(window=4000, rtt=20)
    c.send(b"x" * 20_000)
    d.drain(until=d.now + 5)
    d.strict = False
    d.send(TCP(flags="A", seq=1, ack=2921, window=1500) / (b"z" * 100))
    d.send(TCP(flags="A", seq=201, ack=1461, window=4000) / (b"y" * 100))
    sent = d.drain(until=d.now + 100)
    assert 2921 < max(p[TCP].seq + len(payload(p)) for p in sent) <= 1461 + 4000


def test_ack_has_snd_nxt_though_window_shrank(dialogue):
    """An older number would be answered like a duplicate, and that answer likewise, for ever."""
    d = dialogue()
    c = d.open_passive(window=5000, rtt=20)
    c.send(b"x" * 2920)
    d.drain(until=d.now + 1)
    d.strict = False
    d.send(TCP(flags="A", seq=101, ack=1, window=1000) / (b"y" * 100))  # beyond a hole
    answers = [p for p in d.drain(until=d.now + 5) if not payload(p)]
    assert [p[TCP].seq for p in answers] == [2921]


def test_an_opened_window_is_used_at_once(dialogue):
    d = dialogue()
    c = d.open_passive(window=0, rtt=20)
    c.send(pattern(0, 2920))
    d.silence(during=100)
    d.send(TCP(flags="A", seq=1, ack=1, window=65535))
    d.expect(TCP(seq=1) / pattern(0, 1460))
    d.expect(TCP(seq=1461) / pattern(1460, 1460))


def test_accepted_probe_byte_advances_stream(dialogue):
    """The peer may accept a probe's byte; the next data must follow it."""
    d = dialogue()
    c = d.open_passive(window=0, rtt=20)
    c.send(pattern(0, 3000))
    probe = d.drain(until=d.now + 1000)[0]
    taken = probe[TCP].seq + len(payload(probe)) if payload(probe) else 1
    d.ignore()
    sink = Sink()
    sink.take([probe])
    d.send(TCP(flags="A", seq=1, ack=taken, window=65535))
    sink.take(d.drain(until=d.now + 10))
    assert len(sink.data) >= 2920
    d.send(TCP(flags="A", seq=1, ack=sink.ack, window=65535))
    sink.take(d.drain(until=d.now + 10))
    assert sink.data == pattern(0, 3000)


def test_window_closing_in_flight_stops_sending(dialogue):
    d = dialogue()
    c = d.open_passive(window=2920, rtt=20)
    c.send(pattern(0, 10_000))
    d.expect(TCP(seq=1), length=1460)
    d.expect(TCP(seq=1461), length=1460)
    d.send(TCP(flags="A", seq=1, ack=2921, window=0), at=d.now + 20)
    d.silence(during=150)
    d.send(TCP(flags="A", seq=1, ack=2921, window=2920))
    d.expect(TCP(seq=2921), length=1460)
    d.expect(TCP(seq=4381), length=1460)


def test_lost_fin_is_retransmitted_into_zero_window(dialogue):
    """It needs no room there, and the end of the stream is news."""
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(window=1000, rtt=20)
    c.send(b"x" * 1000)
    c.close()
    d.strict = False
    d.drain(until=d.now + 100)
    d.send(TCP(flags="A", seq=1, ack=1001, window=0))
    sent = d.drain(until=d.now + 5000)
    assert any(p[TCP].flags.F and p[TCP].seq == 1001 for p in sent), [p.summary() for p in sent]


def test_lost_window_update_is_recovered_by_probe(dialogue):
    d = dialogue()
    c = d.open_passive(window=0, rtt=20)
    c.send(b"hello")
    d.drain(until=d.now + 2000)
    d.ignore()
    # The update itself was lost; the answer to the next probe shows the window.
    probes = d.drain(until=d.now + 5000)
    assert probes
    opened = d.now
    assert finish(d, 5, window=1000) == b"hello"
    assert d.now - opened <= 100


def test_a_shrunken_window_is_survived(dialogue):
    """RFC 9293, 3.8.6 (MUST-34): a usable window below zero."""
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(window=14_600, rtt=20)
    c.send(pattern(0, 30_000))
    assert data_bytes(d.drain()) == 14_600
    d.send(TCP(flags="A", seq=1, ack=1461, window=1460), at=d.now + 20)
    new = [p for p in d.drain(until=d.now + 100) if p[TCP].seq >= 1 + 14_600]
    assert new == []
    d.strict = False
    d.send(TCP(flags="A", seq=1, ack=14_601, window=65535))
    assert data_bytes(d.drain()) >= 1460


def test_old_segments_do_not_update_window(dialogue):
    """RFC 9293, 3.10.7.4: SND.WL1 and SND.WL2 keep a window from the past out."""
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive(window=65535, rtt=20)
    d.send(TCP(flags="A", seq=1, ack=1, window=65535) / b"abc")
    d.expect(TCP(ack=4))
    d.strict = False
    d.send(TCP(flags="A", seq=1, ack=1, window=0) / b"abc")
    d.ignore()
    c.send(b"x" * 1460)
    d.expect(TCP(seq=1), length=1460)


def test_older_ack_does_not_update_window(dialogue):
    """The same sequence number, an acknowledgement from before: overtaken on the way."""
    d = dialogue()
    c = d.open_passive(window=20_000, rtt=20)
    c.send(pattern(0, 2920))
    d.expect(TCP(seq=1), length=1460)
    d.expect(TCP(seq=1461), length=1460)
    d.send(TCP(flags="A", seq=1, ack=2921, window=20_000), at=d.now + 20)
    d.send(TCP(flags="A", seq=1, ack=1461, window=0))
    d.send(TCP(flags="A", seq=1, ack=1, window=1))
    c.send(pattern(2920, 2920))
    d.expect(TCP(seq=2921), length=1460)
    d.expect(TCP(seq=4381), length=1460)


def test_segment_with_lower_sequence_does_not_update_window(dialogue):
    """The same acknowledgement, a lower sequence number."""
    d = dialogue()
    c = d.open_passive(window=20_000, rtt=20)
    c.send(pattern(0, 2920))
    d.expect(TCP(seq=1), length=1460)
    d.expect(TCP(seq=1461), length=1460)
    d.strict = False
    d.send(TCP(flags="A", seq=101, ack=2921, window=20_000) / (b"y" * 100), at=d.now + 20)
    d.send(TCP(flags="A", seq=1, ack=2921, window=1) / (b"z" * 100))
    c.send(pattern(2920, 2920))
    assert data_bytes(d.drain(until=d.now + 5)) == 2920


def test_sender_avoids_silly_window(dialogue):
    """RFC 9293, 3.8.6.2.1: the sender's silly-window avoidance."""
    d = dialogue()
    c = d.open_passive(window=20_000, rtt=20)
    c.send(pattern(0, 40_000))
    flight = d.drain()
    sent = data_bytes(flight)
    at = 1 + sent
    d.strict = False
    d.send(TCP(flags="A", seq=1, ack=at, window=0), at=d.now + 20)
    d.ignore()
    d.send(TCP(flags="A", seq=1, ack=at, window=300))
    assert data_bytes(d.drain(until=d.now + 50)) <= 1
    d.send(TCP(flags="A", seq=1, ack=at, window=1460))
    assert 1459 <= data_bytes(d.drain()) <= 1460


def test_a_window_that_stays_small_is_used(dialogue):
    """RFC 9293, 3.8.6.2.1 (3): half of the greatest window seen is worth a segment."""
    d = dialogue()
    c = d.open_passive(window=100, rtt=20)
    stream = pattern(0, 1000)
    c.send(stream)
    got = b""
    d.strict = False
    while len(got) < len(stream) and d.now < 60_000:
        for p in d.drain(until=d.now + 20):
            if p[TCP].seq == 1 + len(got):
                got += payload(p)
        d.send(TCP(flags="A", seq=1, ack=1 + len(got), window=100))
    assert got == stream
    assert d.now < 500  # as fast as the acknowledgements, not as a timer lets it


def test_one_byte_windows_get_few_segments(dialogue):
    """A peer that offers one byte at a time gets few segments, not one for each byte."""
    d = dialogue()
    c = d.open_passive(window=20_000, rtt=20)
    c.send(pattern(0, 30_000))
    at = 1 + data_bytes(d.drain())
    d.strict = False
    segments = 0
    for _ in range(50):
        d.send(TCP(flags="A", seq=1, ack=at, window=1), at=d.now + 5)
        out = [p for p in d.drain() if payload(p)]
        segments += len(out)
        for p in out:
            at = max(at, p[TCP].seq + len(payload(p)))
    assert segments <= 5


# The receiver


def fill(d, size=70_000):
    """Sends until the stack's window is closed; returns the next sequence number."""
    at = 1
    edge = 65535
    while at <= size and edge > at:
        n = min(1460, edge - at)
        d.strict = False
        d.send(TCP(seq=at, ack=1) / pattern(at - 1, n))
        answers = d.drain(until=d.now + 50)
        if not answers:
            break
        at = answers[-1][TCP].ack
        edge = at + answers[-1][TCP].window
        if answers[-1][TCP].window == 0:
            break
    return at


def test_unread_data_closes_receive_window(dialogue):
    d = dialogue(rcvbuf=16_384, delayed_ack_us=0)
    d.open_passive()
    at = fill(d)
    assert 8192 <= at - 1 <= 16_384


@pytest.mark.parametrize("scale", [-1, 0, 3, 7])
def test_advertised_window_is_accepted_to_last_byte(dialogue, scale):
    """To the last byte: the edge that is told is the one that is kept (VPP #3730)."""
    d = dialogue(rcvbuf=100_000, window_scale=scale, packets=4096, delayed_ack_us=0)
    c = d.open_passive(wscale=0)
    d.strict = False
    at, edge = 1, 65_536
    while edge > at:
        while at < edge:
            length = min(1460, edge - at)
            d.send(TCP(flags="A", seq=at, ack=1) / pattern(at - 1, length))
            at += length
        last = d.drain()[-1][TCP]
        assert last.ack == at
        edge = at + (last.window << max(scale, 0))
    assert at - 1 >= 65_535
    assert c.recv(200_000) == pattern(0, at - 1)


def test_probe_of_own_zero_window_is_answered(dialogue):
    """RFC 9293, 3.8.6.1: with the window and the next number that is expected."""
    d = dialogue(rcvbuf=16_384, delayed_ack_us=0)
    d.open_passive()
    at = fill(d)
    for _ in range(5):
        d.send(TCP(seq=at, ack=1) / b"?")
        answer = d.expect(TCP(flags="A", seq=1, ack=at))
        assert answer[TCP].window == 0
    d.send(TCP(seq=at - 1, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=at, window=0))


def test_zero_receive_window_accepts_acks(dialogue):
    """RFC 9293, 3.10.7.4: ACKs, RSTs and URGs are processed with a zero window."""
    d = dialogue(rcvbuf=16_384, delayed_ack_us=0)
    c = d.open_passive()
    at = fill(d)
    c.send(b"x" * 100)
    d.expect(TCP(seq=1), length=100)
    d.send(TCP(flags="A", seq=at, ack=101))
    d.silence(during=5000)


def test_zero_receive_window_accepts_reset(dialogue):
    import errno

    d = dialogue(rcvbuf=16_384, delayed_ack_us=0)
    c = d.open_passive()
    at = fill(d)
    d.send(TCP(flags="R", seq=at))
    assert c.error() == errno.ECONNRESET


def test_reading_sends_window_update(dialogue):
    d = dialogue(rcvbuf=16_384, delayed_ack_us=0)
    c = d.open_passive()
    at = fill(d)
    d.ignore()
    assert c.recv(20_000) == pattern(0, at - 1)
    update = d.expect(TCP(flags="A", seq=1, ack=at), within=10)
    assert update[TCP].window >= 8000


def test_small_reads_send_no_window_update(dialogue):
    """RFC 9293, 3.8.6.2.2: below a segment and half the buffer the window stays as it was."""
    d = dialogue(rcvbuf=16_384, delayed_ack_us=0)
    c = d.open_passive()
    fill(d)
    d.ignore()
    for _ in range(10):
        c.recv(50)
        d.silence(during=1)


def test_receiver_avoids_silly_window(dialogue):
    d = dialogue(rcvbuf=16_384, delayed_ack_us=0)
    c = d.open_passive()
    at = fill(d)
    d.ignore()
    seen = set()
    for _ in range(20):
        c.recv(50)
        d.strict = False
        d.send(TCP(seq=at, ack=1) / b"?")
        seen.update(p[TCP].window for p in d.drain())
    assert all(window == 0 or window >= 1000 for window in seen), seen


def test_slow_reader_gets_whole_stream(dialogue, wire):
    a = make_stack(address="192.0.2.1", sndbuf=20_000)
    b = make_stack(address="192.0.2.2", rcvbuf=8192, seed=(3, 4))
    w = wire(a, b, delay_ns=1_000_000)
    client, server = connect_pair(w)

    w.run([Transfer(client, server, 200_000, read_every_ns=3_000_000, read_size=777)])


@pytest.mark.parametrize("seconds", [120])
def test_two_zero_windows_do_not_exchange_acks_endlessly(wire, seconds):
    """Each side's refusal must not draw the other's: an endless exchange of ACKs."""
    a = make_stack(address="192.0.2.1", rcvbuf=4096, sndbuf=65536)
    b = make_stack(address="192.0.2.2", rcvbuf=4096, sndbuf=65536, seed=(3, 4))
    w = wire(a, b, delay_ns=1_000_000)
    client, server = connect_pair(w)
    client.send(b"a" * 20_000)
    server.send(b"b" * 20_000)
    end = w.now + seconds * 10**9
    w.run(until=lambda: w.now >= end or a.next_deadline() is None, limit_s=seconds + 60)
    assert w.frames < 100


@pytest.mark.parametrize("updates_lost", [False, True])
def test_crossing_window_probes_end(wire, updates_lost):
    """Both sides probe, and both windows open before the probes arrive. Each accepts the other's
    byte, so the window updates lie one byte below the windows (RFC 9293, A.2)."""
    lost = []
    a = make_stack(address="192.0.2.1", rcvbuf=3 * MSS, sndbuf=65536)
    b = make_stack(address="192.0.2.2", rcvbuf=3 * MSS, sndbuf=65536, seed=(3, 4))
    w = wire(a, b, delay_ns=10_000_000, impair=lambda f: [] if lost else [(0, f)])
    pair = connect_pair(w)
    for sock in pair:
        assert sock.send(pattern(0, 20_000)) == 20_000
    w.run(until=lambda: all(s.counters().get("tcp_window_probes", 0) for s in (a, b)))
    w.flush()
    lost += [True] * updates_lost
    streams = [read_all(sock) for sock in pair]
    w.flush()
    lost.clear()
    frames, began = w.frames, w.now

    def both_complete():
        for i, sock in enumerate(pair):
            streams[i] += read_all(sock)
        return [len(stream) for stream in streams] == [20_000] * 2

    w.run(until=both_complete, limit_s=20)
    assert streams == [pattern(0, 20_000)] * 2
    assert w.frames - frames < 200
    assert w.now - began < 3 * 10**9


def test_ack_lies_in_closed_window_of_peer(dialogue):
    """The FIN follows a probe byte that the peer has not accepted: a number behind that byte is
    outside the peer's window, and the peer would ignore the ACK."""
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive(window=1000, rtt=20)
    c.send(b"x" * 1001)
    d.strict = False
    d.drain(until=d.now + 10)
    d.send(TCP(flags="A", seq=1, ack=1001, window=0))
    probes = d.drain(until=d.now + 1000)
    assert probes[-1][TCP].seq == 1001
    c.shutdown(1)
    d.ignore(until=d.now + 10)
    d.send(TCP(flags="A", seq=1, ack=1001, window=0) / b"data")
    answers = [p[TCP].seq for p in d.drain() if p[TCP].ack == 5 and not payload(p)]
    assert answers == [1001]


def test_ack_follows_fin_at_closed_window(dialogue):
    """A FIN needs no window, so the peer expects the number behind it."""
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive(window=1000, rtt=20)
    c.send(b"x" * 1000)
    d.expect(TCP(seq=1), length=1000)
    d.send(TCP(flags="A", seq=1, ack=1001, window=0))
    c.shutdown(1)
    d.expect(TCP(flags="FA", seq=1001))
    d.send(TCP(flags="A", seq=1, ack=1001, window=0) / b"data")
    d.expect(TCP(flags="A", seq=1002, ack=5))


def test_orphan_with_zero_window_is_reset_after_max_rto(dialogue):
    """The peer answers each probe with a zero window. It gets a RST when the RTO has reached its
    maximum, as from Linux. The probes continue while the socket is open."""
    d = dialogue(rto_min_us=200_000, rto_max_us=5_000_000)
    d.strict = False
    kept = d.open_passive(window=0)
    kept.send(b"kept")
    assert not probed(d, 100_000)
    kept.close()
    reset = probed(d, 100_000)
    assert reset
    assert reset[TCP].seq == 1  # the probe's byte is out, but only this number is in the window
    assert d.stack.counters().get("tcp_connections", 0) == 0


def probed(d, ms):
    """Answers each probe by a closed window. Returns the reset; None if none came."""
    until = d.now + ms
    while d.now < until:
        for packet in d.drain(until=d.now + 100):
            if int(packet[TCP].flags) & 0x04:
                return packet
            d.send(TCP(flags="A", seq=1, ack=1, window=0))
    return None
