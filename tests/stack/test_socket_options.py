# SPDX-License-Identifier: Apache-2.0
"""The options of sockets, TCP_INFO among them."""

from __future__ import annotations

import errno
import socket

import pytest
from scapy.layers.inet import TCP

from harp.testing import dialogue as dialogues
from harp.testing.tcp_info import state_name

TCPL = socket.IPPROTO_TCP


def test_buffer_sizes_are_read_back(dialogue):
    d = dialogue()
    sock = d.stack.socket()
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 50_000)
        assert sock.getsockopt(socket.SOL_SOCKET, option) in (50_000, 100_000)  # Linux doubles


def test_so_rcvbuf_bounds_window(dialogue):
    d = dialogue(rcvbuf=65_535)
    d.stack_port = 80
    listener = d.stack.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8000)
    listener.bind((d.stack_address, 80))
    listener.listen(4)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    assert d.expect(TCP(flags="SA"))[TCP].window <= 16_000


def test_listener_options_apply_to_next_connection(dialogue):
    d = dialogue(rcvbuf=65_535)
    d.stack_port = 80
    listener = d.listen(80)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8000)
    listener.setsockopt(TCPL, socket.TCP_MAXSEG, 700)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    answer = d.expect(TCP(flags="SA"))
    assert answer[TCP].window <= 16_000
    assert dialogues.option(answer, "MSS") == 700


def test_larger_so_rcvbuf_grows_window(dialogue):
    d = dialogue(rcvbuf=8000, delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(flags="PA", seq=1, ack=1) / (b"x" * 1000))
    assert d.expect(TCP(flags="A", ack=1001))[TCP].window <= 8000
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_000)
    d.ignore()
    d.send(TCP(flags="PA", seq=1001, ack=1) / (b"x" * 1000))
    assert 28_000 <= d.expect(TCP(flags="A", ack=2001))[TCP].window <= 32_000


SCALES = [(60_000, 3), (65_535 << 7, 7), (64 << 20, 11), (1 << 30, 14)]


@pytest.mark.parametrize(("rcvbuf", "scale"), SCALES)
def test_window_scale_follows_so_rcvbuf_of_socket(dialogue, rcvbuf, scale):
    """At least the configured one; larger where the buffer needs it (RFC 7323, 2.3)."""
    d = dialogue(window_scale=3)
    sock = d.stack.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    sock.connect_ex((d.peer_address, 80))
    assert dialogues.option(d.expect(TCP(flags="S")), "WScale") == scale


@pytest.mark.parametrize(("rcvbuf", "scale"), SCALES)
@pytest.mark.parametrize("cookie", [False, True], ids=["place", "cookie"])
def test_window_scale_follows_so_rcvbuf_of_listener(dialogue, rcvbuf, scale, cookie):
    d = dialogue(window_scale=3, timestamps=1, delayed_ack_us=0)
    d.stack_port = 80
    listener = d.stack.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    listener.bind((d.stack_address, 80))
    listener.listen(1)
    options = d.syn_options(1460, True, 0, True)
    if cookie:
        d.send(TCP(sport=999, flags="S", seq=0, options=options))
        d.expect(TCP(dport=999, flags="SA"))
    d.send(TCP(flags="S", seq=0, options=options))
    answer = d.expect(TCP(flags="SA", dport=d.peer_port))
    assert dialogues.option(answer, "WScale") == scale
    d.send(TCP(flags="A", seq=1, ack=1))
    assert d.accept(listener).tcp_info()["rcv_wscale"] == scale


def test_so_rcvbuf_offers_no_scale_when_scaling_is_off(dialogue):
    d = dialogue(window_scale=-1)
    sock = d.stack.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
    sock.connect_ex((d.peer_address, 80))
    assert dialogues.option(d.expect(TCP(flags="S")), "WScale") is None


@pytest.mark.parametrize("chosen", ["cubic", "reno"])
def test_selected_congestion_control_reduces_ssthresh(dialogue, chosen):
    """After a loss Reno goes on with half of the window, CUBIC with seven tenths."""
    d = dialogue(initial_window=20)
    listener = d.listen(80)
    listener.setsockopt(TCPL, socket.TCP_CONGESTION, chosen.encode())
    d.send(TCP(flags="S", seq=0, options=d.syn_options(1000, True, None, False)))
    d.expect(TCP(flags="SA"))
    d.send(TCP(flags="A", seq=1, ack=1), at=d.now + 20)
    c = d.accept(listener)
    for _ in range(20):
        c.send(b"x" * 1000)
    d.drain()
    d.send(TCP(ack=1, options=[("SAck", (1001, 20_001))]), at=d.now + 20)
    d.drain()
    assert c.tcp_info()["snd_ssthresh"] == {"cubic": 14, "reno": 10}[chosen]


def test_reno_grows_one_segment_per_round_trip(dialogue):
    d = dialogue(cc="reno", initial_window=10)
    c = d.open_passive(mss=1000, rtt=20)
    c.send(b"x" * 12_000)
    d.drain()
    d.send(TCP(ack=1, options=[("SAck", (1001, 10_001))]), at=d.now + 20)
    d.drain()
    d.send(TCP(ack=12_001), at=d.now + 20)
    c.send(b"x" * 200_000)
    flight = [len(dialogues.payload(p)) for p in d.drain()]
    ack, before = 12_001, c.tcp_info()["snd_cwnd"]
    for _ in range(8):  # half a window each: an acknowledgement is no round trip
        half = len(flight) // 2
        ack += sum(flight[:half])
        d.send(TCP(ack=ack), at=d.now + 10)
        flight = flight[half:] + [len(dialogues.payload(p)) for p in d.drain()]
    assert c.tcp_info()["snd_cwnd"] - before == pytest.approx(4, abs=1)


def test_boolean_options_are_read_back(dialogue):
    sock = dialogue().stack.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # allowed, and nothing to do
    for name in (socket.TCP_NODELAY, socket.TCP_CORK):
        for value in (1, 0):
            sock.setsockopt(TCPL, name, value)
            assert sock.getsockopt(TCPL, name) == value


def test_bound_local_port_is_used(dialogue):
    d = dialogue()
    d.connect(80, local_port=4321)
    d.expect(TCP(flags="S", sport=4321))


def test_bound_port_is_shared_until_a_socket_listens(dialogue):
    """SO_REUSEADDR is always on. Two connections of one port go to different peers."""
    d = dialogue()
    a, b, c = (d.stack.socket() for _ in range(3))
    for sock in (a, b):
        sock.bind((d.stack_address, 4321))
    assert a.connect_ex((d.peer_address, 80)) == errno.EINPROGRESS
    assert b.connect_ex((d.peer_address, 80)) == errno.EADDRINUSE
    assert b.connect_ex((d.peer_address, 81)) == errno.EINPROGRESS
    listening = d.stack.socket()
    listening.bind((d.stack_address, 4322))
    listening.listen(1)
    with pytest.raises(OSError) as caught:
        c.bind((d.stack_address, 4322))
    assert caught.value.errno == errno.EADDRINUSE


def test_port_zero_selects_ephemeral_port(dialogue):
    d = dialogue()
    bound, listening = d.stack.socket(), d.stack.socket()
    bound.bind((d.stack_address, 0))
    bound.connect_ex((d.peer_address, 80))
    assert d.expect(TCP(flags="S"))[TCP].sport >= 1024
    listening.listen(1)  # without bind: a port of the stack's choice
    assert listening.poll() == 0


def test_second_listen_changes_backlog(dialogue):
    d = dialogue()
    listener = d.listen(80, backlog=1)
    listener.listen(5)
    d.strict = False
    for port in range(1001, 1005):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    for _ in range(4):
        d.accept(listener)


def test_tcp_maxseg_lowers_segments_of_connection(dialogue):
    d = dialogue()
    c = d.open_passive(mss=1000)
    assert c.getsockopt(TCPL, socket.TCP_MAXSEG) == 1000
    c.setsockopt(TCPL, socket.TCP_MAXSEG, 500)
    c.send(b"x" * 1000)
    assert [len(dialogues.payload(p)) for p in d.drain()] == [500, 500]


def test_so_type_and_so_acceptconn_are_reported(dialogue):
    d = dialogue()
    sock = d.stack.socket()
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0
    assert d.listen(80).getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def test_accepted_sockets_inherit_options(dialogue):
    d = dialogue()
    listener = d.stack.socket()
    listener.setsockopt(TCPL, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(TCPL, socket.TCP_KEEPIDLE, 10)
    listener.bind((d.stack_address, 80))
    listener.listen(4)
    d.stack_port = 80
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA"))
    d.send(TCP(flags="A", seq=1, ack=1))
    c = d.accept(listener)
    assert c.getsockopt(TCPL, socket.TCP_NODELAY) == 1
    d.expect(TCP(flags="A", seq=0, ack=1), within=11_000)  # the keepalive


def test_msg_more_holds_partial_segment(dialogue):
    """MSG_MORE holds a short segment back, like a cork for one call."""
    d = dialogue()
    c = d.open_passive(rtt=20)
    c.send(b"header ", socket.MSG_MORE)
    d.silence(during=20)
    c.send(b"body")
    d.expect(TCP(flags="PA", seq=1) / b"header body")


# TCP_INFO


def test_tcp_info_reports_connection_values(dialogue):
    d = dialogue(initial_window=10, rto_min_us=200_000)
    c = d.open_passive(mss=1000, rtt=50, wscale=None)
    info = c.tcp_info()
    assert state_name(info) == "ESTABLISHED"
    assert info["snd_mss"] == 1000
    assert info["snd_cwnd"] == 10
    assert info["rtt"] == pytest.approx(50_000, rel=0.05)
    assert info["rto"] >= 200_000
    assert info["unacked"] == 0
    assert info["total_retrans"] == 0
    assert 1040 <= info["pmtu"] <= 1500
    c.send(b"x" * 3000)
    d.settle()
    assert c.tcp_info()["unacked"] == 3


def test_tcp_info_shows_negotiated_options(dialogue):
    d = dialogue(timestamps=1, window_scale=5)
    c = d.open_passive(timestamps=True, wscale=3)
    info = c.tcp_info()
    assert info["options"] & 1  # timestamps
    assert info["options"] & 2  # SACK
    assert info["options"] & 4  # window scale
    assert (info["snd_wscale"], info["rcv_wscale"]) == (3, 5)


def test_tcp_info_counts_neither_syn_nor_fin_as_bytes(dialogue):
    d = dialogue()
    c = d.connect(80)
    d.expect(TCP(flags="S"))
    assert c.tcp_info()["bytes_sent"] == 0
    d.send(TCP(flags="SA", seq=0, ack=1))
    d.expect(TCP(flags="A"))
    c.send(b"xyz")
    d.expect(TCP(seq=1), length=3)
    c.shutdown(socket.SHUT_WR)
    d.expect(TCP(flags="FA", seq=4))
    for ack in (1, 4, 5):
        d.send(TCP(seq=1, ack=ack))
        info = c.tcp_info()
        assert (info["bytes_sent"], info["bytes_acked"]) == (3, min(ack - 1, 3))


def test_tcp_info_may_be_truncated(dialogue):
    d = dialogue()
    c = d.open_passive()
    assert len(c.getsockopt(TCPL, socket.TCP_INFO, 8)) == 8
