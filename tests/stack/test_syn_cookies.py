# SPDX-License-Identifier: Apache-2.0
"""SYN cookies: with a full backlog, a SYN is answered without state (RFC 4987, 3.6)."""

from __future__ import annotations

import random

import pytest
from scapy.layers.inet import IP, TCP

from harp.testing._flow import FlowStack
from harp.testing.dialogue import PEER_ADDRESS, STACK_ADDRESS, option, payload
from harp.testing.frames import check_ipv4
from harp.testing.wire import pattern

PERIOD_MS = 2**36 / 1e6  # of a cookie; it holds for the next one, too
ALL = [("MSS", 1400), ("SAckOK", b""), ("Timestamp", (5_000_000, 0)), ("WScale", 9)]


def flooded(dialogue, backlog=4, **config):
    """A listener whose backlog has just been filled by hosts that will never answer."""
    d = dialogue(**{"max_connections": 64, "rto_initial_us": 3_000_000, **config})
    listener = d.listen(80, backlog=backlog)
    for port in range(1001, 1001 + backlog):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
    d.peer_port = 2000
    return d, listener


def test_syn_to_full_backlog_gets_cookie_and_connects(dialogue):
    d, listener = flooded(dialogue)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1))
    connection = d.accept(listener)
    d.send(TCP(seq=1, ack=1) / b"ping")
    assert connection.recv(10) == b"ping"
    d.ignore()
    connection.send(b"pong")
    d.expect(TCP(seq=1, ack=5) / b"pong")


def test_syn_flood_leaves_only_backlog_connections():
    """A thousand SYNs, a backlog of eight: eight blocks, eight timers, and the ninth is served."""
    s = FlowStack(address=STACK_ADDRESS, prefix=24, max_connections=64, packets=64)
    s.advance(10**12)
    listener = s.listen(80, backlog=8)
    base = IP(src=PEER_ADDRESS, dst=STACK_ADDRESS)
    for port in range(1000, 2000):
        s.receive(bytes(base / TCP(sport=port, dport=80, flags="S", seq=7)))
        s.flush()
    counters = s.counters()
    assert counters["tcp_connections"] == 8
    assert counters["tcp_cookies_out"] == 992
    s.take()
    s.receive(bytes(base / TCP(sport=999, dport=80, flags="S", seq=7)))
    s.flush()
    answer = check_ipv4(s.take()[-1].data)
    s.receive(bytes(base / TCP(sport=999, dport=80, flags="A", seq=8, ack=answer.seq + 1)))
    assert len(listener.accepted) == 1
    assert s.counters()["tcp_cookies_in"] == 1


def test_syn_cookies_are_limited_to_10000_per_second():
    """Ten thousand in a second, or the answers would cost more than the flood."""
    s = FlowStack(address=STACK_ADDRESS, prefix=24, max_connections=16, packets=64)
    s.advance(10**12)
    s.listen(80, backlog=1)
    frame = bytearray(
        bytes(IP(src=PEER_ADDRESS, dst=STACK_ADDRESS) / TCP(sport=1, dport=80, flags="S"))
    )
    for port in range(1, 12_001):
        frame[20:22] = port.to_bytes(2, "big")
        s.receive(bytes(frame), b"", 0, True)
    s.flush()
    counters = s.counters()
    assert counters["tcp_cookies_out"] == 10_000
    assert counters["tcp_listen_drops"] == 12_000 - 10_000 - 1


@pytest.mark.parametrize(
    ("mss", "expected"),
    [(None, 536), (10, 88), (536, 536), (1199, 536), (1400, 1360), (1460, 1460), (9000, 1460)],
)
def test_cookie_rounds_mss_down(dialogue, mss, expected):
    """Never above what the peer has offered."""
    d, listener = flooded(dialogue)
    d.send(TCP(flags="S", seq=0, options=[("MSS", mss)] if mss else []))
    d.expect(TCP(flags="SA"))
    d.send(TCP(flags="A", seq=1, ack=1))
    connection = d.accept(listener)
    connection.send(b"x" * 4000)
    assert len(payload(d.drain()[0])) == expected


def test_cookie_restores_options_from_timestamp(dialogue):
    d, listener = flooded(dialogue, timestamps=1, window_scale=7, rcvbuf=1 << 20, delayed_ack_us=0)
    d.send(TCP(flags="S", seq=0, options=ALL))
    answer = d.expect(TCP(flags="SA"))
    assert option(answer, "SAckOK") is not None
    assert option(answer, "WScale") == 7
    d.send(TCP(flags="A", seq=1, ack=1, window=100))
    connection = d.accept(listener)
    info = connection.tcp_info()
    assert info["options"] & 7 == 7  # timestamps, SACK, window scale
    assert (info["snd_wscale"], info["rcv_wscale"]) == (9, 7)
    d.send(TCP(seq=101, ack=1, window=100) / b"y")
    assert option(d.expect(TCP(ack=1)), "SAck") == (101, 102)
    connection.send(pattern(0, 2696))
    # Two full segments. 100 << 9 is room for them; 100 would not be.
    assert [len(payload(p)) for p in d.drain()] == [1348, 1348]


@pytest.mark.parametrize("left_out", ["SAckOK", "WScale"])
def test_cookie_restores_no_option_not_offered(dialogue, left_out):
    d, listener = flooded(dialogue, timestamps=1, window_scale=7)
    d.send(TCP(flags="S", seq=0, options=[o for o in ALL if o[0] != left_out]))
    assert option(d.expect(TCP(flags="SA")), left_out) is None
    d.send(TCP(flags="A", seq=1, ack=1))
    info = d.accept(listener).tcp_info()
    assert info["options"] & 7 == (1 | (2 if left_out == "WScale" else 4))


def test_cookie_without_timestamps_offers_only_mss(dialogue):
    """They could not be remembered, so they are not agreed to."""
    d, listener = flooded(dialogue, timestamps=1, window_scale=7)
    d.send(TCP(flags="S", seq=0, options=[o for o in ALL if o[0] != "Timestamp"]))
    answer = d.expect(TCP(flags="SA"))
    assert {name for name, _ in answer[TCP].options} == {"MSS"}
    d.send(TCP(flags="A", seq=1, ack=1))
    assert d.accept(listener).tcp_info()["options"] & 7 == 0


def test_timestamp_clock_continues_after_cookie(dialogue):
    """The low bits are taken from the past: what follows is no older (RFC 7323, 5.3)."""
    for at in range(0, 40, 3):
        d, listener = flooded(dialogue, timestamps=1, delayed_ack_us=0)
        d.send(TCP(flags="S", seq=0, options=ALL), at=at)
        first = option(d.expect(TCP(flags="SA")), "Timestamp")[0]
        d.send(TCP(flags="A", seq=1, ack=1))
        d.accept(listener)
        d.send(TCP(seq=1, ack=1) / b"x")
        second = option(d.expect(TCP(ack=2)), "Timestamp")[0]
        assert (second - first) % 2**32 < 100


def test_data_segment_completes_cookie_after_lost_ack(dialogue):
    """The first segment of data brings the same acknowledgement."""
    d, listener = flooded(dialogue)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA"))
    d.send(TCP(seq=1, ack=1) / b"hello")
    assert d.accept(listener).recv(10) == b"hello"


def test_out_of_order_data_before_cookie_ack_gets_no_reset(dialogue):
    d, listener = flooded(dialogue)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA"))
    d.send(TCP(seq=6, ack=1) / b"world")
    d.silence()
    d.send(TCP(seq=1, ack=1) / b"hello")
    connection = d.accept(listener)
    d.ignore()
    d.send(TCP(seq=6, ack=1) / b"world")
    assert connection.recv(20) == b"helloworld"


@pytest.mark.parametrize("periods", [0, 1])
def test_cookie_is_valid_for_its_period(dialogue, periods):
    d, listener = flooded(dialogue)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA"))
    d.ignore(until=d.now + periods * PERIOD_MS)
    d.send(TCP(flags="A", seq=1, ack=1))
    d.accept(listener)


def test_expired_cookie_is_refused(dialogue):
    d, listener = flooded(dialogue)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA"))
    d.ignore(until=d.now + 2 * PERIOD_MS)
    d.strict = False
    for port in range(3001, 3006):  # there are others out
        d.send(TCP(sport=port, flags="S", seq=0))
    d.ignore()
    d.send(TCP(flags="A", seq=1, ack=1))
    d.silence()
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_cookie_is_valid_for_one_connection_only(dialogue):
    """Other ports, another number of the peer's, another cookie: nothing."""
    d, listener = flooded(dialogue)
    d.send(TCP(flags="S", seq=0))
    number = (d.expect(TCP(flags="SA")), d.flow().irs)[1]
    assert number is not None

    def ack(port, seq, cookie):
        tcp = TCP(sport=port, dport=80, flags="A", seq=d.peer_iss + seq, ack=(cookie + 1) % 2**32)
        d.send(bytes(IP(src=PEER_ADDRESS, dst=STACK_ADDRESS) / tcp))
        d.silence()

    ack(2001, 1, number)
    ack(2000, 2, number)
    for bit in range(32):
        if bit >= 3:  # the lowest bits say no more than an MSS, which is the peer's to choose
            ack(2000, 1, number ^ 1 << bit)
    r = random.Random(1)
    for _ in range(500):
        ack(r.randrange(1024, 65536), r.randrange(2**31), r.getrandbits(32))
    with pytest.raises(BlockingIOError):
        listener.accept()
    ack(2000, 1, number)
    listener.accept()


def test_cookie_is_refused_when_none_is_outstanding(dialogue):
    """A correct cookie is refused while the listener has sent none."""
    d, listener = flooded(dialogue)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA"))
    irs = d.flow().irs
    calm = dialogue(max_connections=64)
    calm_listener = calm.listen(80, backlog=4)
    tcp = TCP(sport=2000, dport=80, flags="A", seq=d.peer_iss + 1, ack=(irs + 1) % 2**32)
    calm.send(bytes(IP(src=PEER_ADDRESS, dst=STACK_ADDRESS) / tcp))
    assert int(calm.drain()[0][TCP].flags) == 0x04
    with pytest.raises(BlockingIOError):
        calm_listener.accept()


def two_answers(d, **options):
    """A SYN that is given a cookie, and later, sent again, a place. Returned is what the peer knows
    if it was the cookie that came through first: its number and its timestamp."""
    d.send(TCP(flags="S", seq=0, **options))
    d.expect(TCP(flags="SA"))
    cookie = {"irs": d.flow().irs, "ts_recent": d.flow().ts_recent}
    d.send(TCP(flags="S", seq=0, **options), at=d.now + 1005)
    d.expect(TCP(flags="SA"))
    assert d.flow().irs != cookie["irs"]
    return cookie


def test_cookie_ack_is_accepted_after_retransmitted_syn(dialogue):
    """The answer to the first SYN was on its way when the second was sent."""
    d, listener = flooded(dialogue, timestamps=1, window_scale=7)
    vars(d.flow()).update(two_answers(d, options=ALL))
    d.send(TCP(flags="A", seq=1, ack=1, window=100), at=d.now + 10)
    connection = d.accept(listener)
    info = connection.tcp_info()
    assert info["options"] & 7 == 7  # timestamps, SACK, window scale
    assert (info["snd_wscale"], info["rcv_wscale"]) == (9, 7)
    assert info["rtt"] == 0  # nobody knows when the cookie was sent
    d.send(TCP(seq=1, ack=1, window=100) / b"ping")
    assert connection.recv(10) == b"ping"
    d.ignore()
    connection.send(b"pong")
    d.expect(TCP(seq=1, ack=5) / b"pong")
    assert d.stack.counters()["tcp_cookies_in"] == 1


def test_cookie_ack_after_second_syn_ack_keeps_cookie_options(dialogue):
    """Without timestamps a cookie agrees to nothing; then nothing is agreed."""
    d, listener = flooded(dialogue, window_scale=7)
    options = [("MSS", 1400), ("SAckOK", b""), ("WScale", 9)]
    vars(d.flow()).update(two_answers(d, options=options))
    d.send(TCP(flags="A", seq=1, ack=1))
    info = d.accept(listener).tcp_info()
    assert (info["options"] & 7, info["snd_wscale"], info["rcv_wscale"]) == (0, 0, 0)


def test_ack_of_second_syn_ack_is_accepted_after_cookie(dialogue):
    d, listener = flooded(dialogue)
    two_answers(d)
    d.send(TCP(flags="A", seq=1, ack=1))
    d.accept(listener)
    assert "tcp_cookies_in" not in d.stack.counters()


def test_ack_of_neither_syn_ack_gets_no_reset(dialogue):
    """It may be a later segment of who was given the cookie: no reset, and nothing is open."""
    d, listener = flooded(dialogue)
    vars(d.flow()).update(two_answers(d))
    d.send(TCP(seq=6, ack=1) / b"world")
    d.send(TCP(flags="A", seq=1, ack=77))
    d.silence()
    with pytest.raises(BlockingIOError):
        listener.accept()
    d.send(TCP(seq=1, ack=1) / b"hello")
    assert d.accept(listener).recv(10) == b"hello"


def test_cookie_for_full_accept_queue_evicts_no_handshake(dialogue):
    """It may be a copy, sent again and again: the handshakes under way go on."""
    d = dialogue(max_connections=16)
    d.listen(81, backlog=16)
    listener = d.listen(80, backlog=1)
    for port in (1001, 1002, 1003):  # a cookie for the second and the third
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
    for port in (1001, 1002):
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    for port in range(3001, 3013):
        d.send(TCP(sport=port, dport=81, flags="S", seq=0))
        d.expect(TCP(sport=81, dport=port, flags="SA"))
        if port < 3005:
            d.send(TCP(sport=port, dport=81, flags="A", seq=1, ack=1))
    for _ in range(20):
        d.send(TCP(sport=1003, dport=80, flags="A", seq=1, ack=1))
    d.silence()
    assert d.stack.counters()["tcp_connections"] == 14  # an eighth is not for these
    assert "tcp_half_open_dropped" not in d.stack.counters()
    d.accept(listener)
