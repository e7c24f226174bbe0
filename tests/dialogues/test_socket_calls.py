# SPDX-License-Identifier: Apache-2.0
"""Results of the socket calls, and their effect on the wire."""

from __future__ import annotations

import errno
import socket
import termios

import pytest
from scapy.layers.inet import IP, TCP

from harp.testing.segments import payload

TCPL = socket.IPPROTO_TCP
INQ, OUTQ = termios.FIONREAD, termios.TIOCOUTQ
TOS = 0x48
NEVER_US = 60_000_000  # a retransmission timeout that no test reaches


def test_getsockname_and_getpeername(either):
    d = either()
    c = d.open_passive()
    assert c.getsockname() == (d.stack_address, 80)
    assert c.getpeername() == (d.peer_address, d.peer_port)


def test_getsockname_and_getpeername_before_connection(either):
    d = either()
    s = d.stack.socket()
    assert s.getsockname() == ("0.0.0.0", 0)
    s.bind(("0.0.0.0", 4321))
    assert s.getsockname() == ("0.0.0.0", 4321)
    with pytest.raises(OSError) as caught:
        s.getpeername()
    assert caught.value.errno == errno.ENOTCONN
    s.connect_ex((d.peer_address, 80))
    assert s.getsockname() == (d.stack_address, 4321)
    with pytest.raises(OSError) as caught:
        s.getpeername()
    assert caught.value.errno == errno.ENOTCONN


def test_getsockname_and_getpeername_after_reset(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="R", seq=1))
    assert c.getsockname() == (d.stack_address, 80)
    with pytest.raises(OSError) as caught:
        c.getpeername()
    assert caught.value.errno == errno.ENOTCONN


def test_fionread_counts_unread_bytes(either):
    d = either()
    c = d.open_passive()
    assert c.ioctl(INQ) == 0
    d.send(TCP(seq=1, ack=1) / b"hello")
    d.expect(TCP(flags="A", ack=6), within=60)
    assert c.ioctl(INQ) == 5
    c.recv(2)
    assert c.ioctl(INQ) == 3
    d.send(TCP(flags="FA", seq=6, ack=1))
    d.expect(TCP(flags="A", ack=7), within=60)
    assert c.ioctl(INQ) == 3  # a FIN is not read
    d.send(TCP(flags="R", seq=7))
    assert c.ioctl(INQ) == 3


def test_tiocoutq_counts_unacked_bytes(either):
    d = either(initial_window=2)
    c = d.open_passive(mss=1000)
    assert c.ioctl(OUTQ) == 0
    c.send(b"x" * 5000)
    d.expect(TCP(flags="A", seq=1), length=1000)
    d.expect(TCP(flags="A", seq=1001), length=1000)
    assert c.ioctl(OUTQ) == 5000
    d.send(TCP(seq=1, ack=1001))
    d.ignore()
    assert c.ioctl(OUTQ) == 4000


def test_tiocoutq_counts_unacked_fin(either):
    d = either()
    c = d.open_passive()
    c.shutdown(socket.SHUT_WR)
    d.expect(TCP(flags="FA", seq=1))
    assert c.ioctl(OUTQ) == 1
    d.send(TCP(seq=1, ack=2))
    d.silence()
    assert c.ioctl(OUTQ) == 0


def test_fionread_on_listener_is_einval(either):
    d = either()
    with pytest.raises(OSError) as caught:
        d.listen(80).ioctl(INQ)
    assert caught.value.errno == errno.EINVAL


def test_recv_msg_oob_without_urgent_data_is_einval(either):
    d = either()
    c = d.open_passive()
    with pytest.raises(OSError) as caught:
        c.recv(1, socket.MSG_OOB)
    assert caught.value.errno == errno.EINVAL


def test_ip_tos_is_set_on_all_packets(either):
    d = either()
    c = d.open_active(before=lambda s: s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS | 3))
    c.send(b"x")
    d.expect(TCP(flags="A", seq=1), length=1)
    d.send(TCP(flags="A", seq=1, ack=2) / b"y")
    d.expect(TCP(flags="A", seq=2, ack=2), within=60)
    c.recv(1)
    c.close()
    d.expect(TCP(flags="FA", seq=2, ack=2))
    sent = [IP(event.frame).tos for event in d.trace if event.sent]
    assert sent == [TOS] * 5  # the bits of ECN are not the application's


def test_ip_tos_is_inherited_from_listener(either):
    d = either()
    listener = d.listen(80)
    listener.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1))
    c = d.accept(listener)
    assert c.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == TOS
    c.send(b"x")
    d.expect(TCP(flags="A", seq=1), length=1)
    assert [IP(event.frame).tos for event in d.trace if event.sent] == [TOS] * 2


def test_tcp_congestion_selects_algorithm(either):
    d = either()
    c = d.open_passive()
    c.setsockopt(TCPL, socket.TCP_CONGESTION, b"reno")
    assert c.getsockopt(TCPL, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"
    with pytest.raises(OSError) as caught:
        c.setsockopt(TCPL, socket.TCP_CONGESTION, b"vegas-of-mars")
    assert caught.value.errno == errno.ENOENT
    assert c.getsockopt(TCPL, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"


def test_tcp_maxseg_sets_advertised_mss(either):
    d = either()
    c = d.open_active(before=lambda s: s.setsockopt(TCPL, socket.TCP_MAXSEG, 700))
    assert c.tcp_info()["advmss"] == 700
    c.setsockopt(TCPL, socket.TCP_MAXSEG, 600)
    assert c.tcp_info()["advmss"] == 700  # it was said already


def test_tcp_maxseg_of_listener_sets_advertised_mss(either):
    d = either()
    listener = d.listen(80)
    listener.setsockopt(TCPL, socket.TCP_MAXSEG, 700)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    d.expect(TCP(flags="SA", seq=0, ack=1, options=[("MSS", 700)]))
    d.send(TCP(flags="A", seq=1, ack=1))
    assert d.accept(listener).tcp_info()["advmss"] == 700


def test_tcp_info_counts_sent_retransmitted_and_dsacks(either):
    """tcp_info through a loss that three selective acknowledgements show, and a needless copy."""
    d = either(rto_min_us=NEVER_US)
    c = d.open_passive(mss=1000, window=5000)
    for _ in range(4):
        c.send(b"x" * 1000)
    d.drain()
    d.send(TCP(ack=1, options=[("SAck", (1001, 4001))]))
    # Linux's clock is real: on a busy machine its tail loss probe may come first.
    while d.expect(TCP(), length=1000)[TCP].seq != 1:
        pass
    d.send(TCP(ack=4001, window=3000))
    d.silence()
    info = c.tcp_info()
    segments = sum(bool(payload(IP(event.frame))) for event in d.trace if event.sent)
    assert (info["bytes_sent"], info["bytes_retrans"]) == (segments * 1000, (segments - 4) * 1000)
    assert info["dsack_dups"] == 0
    assert (info["snd_wnd"], info["notsent_bytes"], info["total_rto"]) == (3000, 0, 0)
    d.send(TCP(ack=4001, window=3000, options=[("SAck", (1, 1001))]))
    d.silence()
    assert c.tcp_info()["dsack_dups"] == 1


def test_tcp_info_counts_out_of_order_segments(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(seq=101, ack=1) / (b"x" * 100))
    d.expect(TCP(flags="A", ack=1))
    d.send(TCP(seq=301, ack=1) / (b"x" * 100))
    d.expect(TCP(flags="A", ack=1))
    info = c.tcp_info()
    assert (info["rcv_ooopack"], info["bytes_received"]) == (2, 0)
    d.send(TCP(seq=1, ack=1) / (b"x" * 100))
    d.expect(TCP(flags="A", ack=201))
    assert c.tcp_info()["bytes_received"] == 200


def test_tcp_info_counts_busy_time(either):
    d = either(rto_min_us=NEVER_US)
    c = d.open_passive()
    busy_ms = 0.0
    for _ in range(2):
        began = d.now
        c.send(b"x" * 100)
        d.drain()
        d.after(50)
        d.send(TCP(seq=1))
        busy_ms += d.now - began
        d.silence(during=50)
    # A clock of Linux's has ticks of up to ten milliseconds.
    ticks_ms = 1 if d.who == "harp" else 20
    assert 100 - ticks_ms <= c.tcp_info()["busy_time"] / 1000 <= busy_ms + ticks_ms


def test_tcp_info_counts_time_of_closed_window(either):
    d = either(rto_min_us=NEVER_US)
    c = d.open_passive()
    c.send(b"x" * 5)
    d.expect(TCP(seq=1) / b"xxxxx")
    d.after(50)
    d.send(TCP(seq=1, ack=6, window=0))
    began = d.now
    c.send(b"y" * 100)
    d.silence(during=50)
    info = c.tcp_info()
    ticks_ms = 1 if d.who == "harp" else 20
    assert 50 - ticks_ms <= info["rwnd_limited"] / 1000 <= d.now - began + ticks_ms
    assert info["rwnd_limited"] < info["busy_time"]
    d.send(TCP(seq=1, ack=6, window=1000))
    closed_ms = d.now - began
    d.expect(TCP(seq=6) / (b"y" * 100))
    d.send(TCP(seq=1, ack=106, window=1000))
    d.silence(during=50)
    assert c.tcp_info()["rwnd_limited"] / 1000 <= closed_ms + 10 + ticks_ms


def test_tcp_info_counts_timeouts(either):
    """Two timeouts without an acknowledgement are one recovery."""
    d = either()
    c = d.open_passive()
    if "total_rto" not in c.tcp_info():
        pytest.skip("this kernel is older than that field")
    c.send(b"x" * 100)
    limit = d.now + 20_000
    while c.tcp_info()["total_rto"] < 2 and d.now < limit:
        d.ignore(d.now + 50)
    info = c.tcp_info()
    assert info["total_rto"] >= 2
    assert info["total_rto_recoveries"] == 1
