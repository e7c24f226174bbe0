# SPDX-License-Identifier: Apache-2.0
"""Cases of published TCP script suites (packetdrill, packetimpact), with HARP and with Linux."""

from __future__ import annotations

import socket

import pytest
from scapy.layers.inet import ICMP, TCP

from harp.testing.dialogue import payload
from harp.testing.flights import MSS, ack, send_flight, seq, timestamp_option
from harp.testing.wire import pattern


def test_reopened_window_gets_no_burst_of_old_cwnd(either):
    """RFC 5681, 4.1: after seconds of a closed window there is no ACK clock."""
    d = either(rto_min_us=200_000, sndbuf=1 << 20, window_scale=8, rcvbuf=1 << 20)
    c = d.open_passive(rtt=50, wscale=8, window=4000)
    d.strict = False
    una = 1
    for _ in range(6):
        c.send(pattern(0, 60 * MSS))
        d.settle()
        while True:
            top = max([p[TCP].seq + len(payload(p)) for p in d.drain() if payload(p)] or [una])
            if top <= una:
                break
            una = top
            d.send(TCP(flags="A", seq=1, ack=una, window=4000), at=d.now + 50)
    assert c.tcp_info()["snd_cwnd"] >= 60
    d.send(TCP(flags="A", seq=1, ack=una, window=0))
    c.send(pattern(0, 400 * MSS))
    d.ignore(d.now + 8000)
    d.send(TCP(flags="A", seq=1, ack=una, window=4000))
    assert sum(bool(payload(p)) for p in d.drain()) <= 12


def test_duplicate_ack_ends_needless_tail_loss_probe(either):
    """RFC 8985, 7.4.2, case 2: a peer without DSACK answers the copy by a bare duplicate."""
    d = either(rto_min_us=3_000_000)
    c = d.open_passive(rtt=100)
    send_flight(d, c)
    d.expect(TCP(seq=seq(9)), length=MSS, within=600)
    d.strict = False
    d.send(ack(10))  # the original's, late
    before = c.tcp_info()["snd_cwnd"]
    d.send(ack(10))  # the copy's
    c.send(pattern(10 * MSS, MSS))
    d.ignore()
    d.send(ack(11), at=d.now + 100)
    assert c.tcp_info()["snd_cwnd"] >= before


@pytest.mark.parametrize("when", ["before", "after"])
def test_data_is_readable_despite_shut_rd(either, when):
    """packetdrill: shutdown-rd-wr-close. What was acknowledged can be read, and close sends FIN."""
    d = either(delayed_ack_us=0)
    c = d.open_passive()
    if when == "after":
        c.shutdown(socket.SHUT_RD)
    d.send(TCP(seq=1, ack=1) / (b"x" * 1000))
    d.expect(TCP(flags="A", ack=1001), within=60)
    if when == "before":
        c.shutdown(socket.SHUT_RD)
    assert len(c.recv(1000)) == 1000
    assert c.recv(1000) == b""
    d.ignore()
    c.close()
    d.settle()
    d.expect(TCP(flags="FA", seq=1))


@pytest.mark.parametrize("size", [2048, 8972])
def test_large_echo_request_is_answered(either, size):
    """RFC 1122, 3.2.2.6. `ping -M do -s 8972` is how a jumbo path is checked."""
    d = either(mtu=9000)
    d.listen(80)
    d.strict = False
    d.send(ICMP(type=8, id=7, seq=1) / pattern(0, size))
    answers = [p for p in d.drain(d.now + 20) if ICMP in p]
    assert [bytes(p[ICMP].payload) for p in answers] == [pattern(0, size)]


def test_all_acks_of_a_full_window_grow_cwnd(either):
    """packetdrill: slow-start-app-limited. Ten segments filled the window of ten."""
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=200)
    send_flight(d, c)
    d.run(d.now + 200)
    d.strict = False
    for i in (2, 4, 6, 8, 10):
        d.send(ack(i))
    assert c.tcp_info()["snd_cwnd"] == 20


def test_older_timestamp_does_not_reopen_time_wait(either):
    """RFC 6191, 2: with timestamps on both, an older one leaves TIME-WAIT."""
    d = either(timestamps=1)
    listener = d.listen(80)
    d.strict = False
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460), *timestamp_option(5000)]))
    d.expect(TCP(flags="SA"))
    d.send(TCP(flags="A", seq=1, ack=1, options=timestamp_option(5001)))
    c = d.accept(listener)
    c.shutdown(1)
    d.ignore(d.now + 5)
    d.send(TCP(flags="FA", seq=1, ack=2, options=timestamp_option(5002)))
    d.ignore(d.now + 5)
    c.close()
    d.ignore(d.now + 5)
    d.forget(d.peer_iss + 100_000)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460), *timestamp_option(4000)]))
    assert all("S" not in str(p[TCP].flags) for p in d.drain(d.now + 20))


def test_sacked_data_shows_disorder(either):
    """packetdrill: cwnd-moderation-disorder-no-moderation, TCP_CA_Disorder."""
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=200)
    send_flight(d, c)
    d.run(d.now + 200)
    d.strict = False
    d.send(ack(0, (1, 2)))
    assert c.tcp_info()["ca_state"] == 1
