# SPDX-License-Identifier: Apache-2.0
"""The socket calls of harp/stack.h: errors, backlog, poll bits, options, TCP_INFO."""

from __future__ import annotations

import errno
import select
import socket

import pytest
from scapy.layers.inet import TCP

from harp.testing import dialogue as dialogues
from harp.testing.tcp_info import state_name

TCPL = socket.IPPROTO_TCP
IN, OUT, HUP, RDHUP, ERR = (
    select.POLLIN, select.POLLOUT, select.POLLHUP, select.POLLRDHUP, select.POLLERR
)  # fmt: skip


def fails(error, call, *arguments):
    with pytest.raises(OSError) as caught:
        call(*arguments)
    assert errno.errorcode[caught.value.errno] == errno.errorcode[error]


# Errors


def test_connect_is_in_progress(dialogue):
    d = dialogue()
    assert d.stack.socket().connect_ex((d.peer_address, 80)) == errno.EINPROGRESS


def test_connect_twice(dialogue):
    d = dialogue()
    sock = d.connect(80)
    assert sock.connect_ex((d.peer_address, 80)) == errno.EALREADY
    d.expect(TCP(flags="S"))
    d.send(TCP(flags="SA", seq=0, ack=1))
    d.ignore()
    assert sock.connect_ex((d.peer_address, 80)) in (0, errno.EISCONN)
    assert sock.connect_ex((d.peer_address, 80)) == errno.EISCONN


def test_a_refused_connection_can_be_seen_in_every_way(dialogue):
    d = dialogue()
    for see in ("error", "recv", "send", "connect"):
        sock = d.connect(80)
        d.expect(TCP(flags="S"))
        d.send(TCP(flags="RA", seq=0, ack=1))
        assert sock.poll() & (ERR | HUP)
        if see == "error":
            assert sock.error() == errno.ECONNREFUSED
        elif see == "connect":
            assert sock.connect_ex((d.peer_address, 80)) == errno.ECONNREFUSED
        else:
            fails(errno.ECONNREFUSED, *((sock.recv, 1) if see == "recv" else (sock.send, b"x")))
        sock.close()


def test_not_connected(dialogue):
    d = dialogue()
    sock = d.stack.socket()
    fails(errno.ENOTCONN, sock.recv, 10)
    with pytest.raises(OSError) as caught:
        sock.send(b"x")
    assert caught.value.errno in (errno.ENOTCONN, errno.EPIPE)  # Linux says EPIPE


def test_sending_while_connecting_would_block(dialogue):
    d = dialogue()
    sock = d.connect(80)
    fails(errno.EAGAIN, sock.send, b"x")
    fails(errno.EAGAIN, sock.recv, 1)


def test_nothing_to_read_would_block(dialogue):
    d = dialogue()
    fails(errno.EAGAIN, d.open_passive().recv, 10)


def test_nobody_to_accept_would_block(dialogue):
    d = dialogue()
    fails(errno.EAGAIN, d.listen(80).accept)


def test_a_full_send_buffer_would_block(dialogue):
    d = dialogue(sndbuf=10_000)
    c = d.open_passive(window=0)
    sent = 0
    with pytest.raises(BlockingIOError):
        while sent < 10**6:
            sent += c.send(b"x" * 3000)
    assert 3000 <= sent <= 40_000
    assert not c.poll() & OUT


def test_a_partial_send_can_be_resumed(dialogue):
    d = dialogue(sndbuf=10_000)
    c = d.open_passive()
    first = c.send(b"x" * 1_000_000)
    assert 0 < first <= 40_000
    d.strict = False
    sink = dialogues.Sink()
    total = first
    for _ in range(200):
        sink.take(d.drain())
        d.send(TCP(flags="A", seq=1, ack=sink.ack))
        try:
            total += c.send(b"x" * 1000)
        except BlockingIOError:
            pass
    d.drain()
    assert total > first + 10_000


def test_broken_pipe(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="R", seq=1))
    fails(errno.ECONNRESET, c.send, b"x")
    fails(errno.EPIPE, c.send, b"x")


def test_an_address_in_use(dialogue):
    d = dialogue()
    d.listen(80)
    sock = d.stack.socket()
    with pytest.raises(OSError) as caught:
        sock.bind((d.stack_address, 80))
        sock.listen(1)
    assert caught.value.errno == errno.EADDRINUSE


def test_a_port_is_free_again_after_its_listener(dialogue):
    d = dialogue()
    d.listen(80).close()
    d.listen(80)


def test_an_address_that_is_not_ours(dialogue):
    d = dialogue()
    fails(errno.EADDRNOTAVAIL, d.stack.socket().bind, ("192.0.2.77", 80))


def test_binding_twice(dialogue):
    d = dialogue()
    sock = d.stack.socket()
    sock.bind((d.stack_address, 80))
    fails(errno.EINVAL, sock.bind, (d.stack_address, 81))


def test_listening_on_a_connection(dialogue):
    d = dialogue()
    fails(errno.EINVAL, d.open_passive().listen, 1)


def test_connecting_a_listener(dialogue):
    d = dialogue()
    assert d.listen(80).connect_ex((d.peer_address, 80)) in (errno.EISCONN, errno.EINVAL,
                                                             errno.EOPNOTSUPP)  # fmt: skip


def test_accepting_from_a_connection(dialogue):
    d = dialogue()
    fails(errno.EINVAL, d.open_passive().accept)


def test_calls_on_a_closed_socket(dialogue):
    d = dialogue()
    sock = d.stack.socket()
    sock.close()
    fails(errno.EBADF, sock.close)
    fails(errno.EBADF, sock.send, b"x")
    fails(errno.EBADF, sock.recv, 1)
    fails(errno.EBADF, sock.bind, (d.stack_address, 80))
    fails(errno.EBADF, sock.listen, 1)
    fails(errno.EBADF, sock.accept)
    fails(errno.EBADF, sock.shutdown, 1)
    fails(errno.EBADF, sock.poll)
    fails(errno.EBADF, sock.error)


def test_numbers_that_were_never_given(dialogue):
    from harp.testing._stack import Socket

    d = dialogue()
    for number in (-1, 5, 1 << 20, -(1 << 31), (1 << 31) - 1):
        sock = Socket(d.stack, number)
        fails(errno.EBADF, sock.poll)
        fails(errno.EBADF, sock.send, b"x")
        fails(errno.EBADF, sock.close)


def test_unknown_options(dialogue):
    d = dialogue()
    sock = d.stack.socket()
    fails(errno.ENOPROTOOPT, sock.setsockopt, TCPL, 9999, 1)
    fails(errno.ENOPROTOOPT, sock.getsockopt, TCPL, 9999)
    for level in (socket.SOL_SOCKET, socket.IPPROTO_IP):
        fails(errno.ENOPROTOOPT, sock.setsockopt, level, 9999, 1)
        fails(errno.ENOPROTOOPT, sock.getsockopt, level, 9999)


def test_options_of_a_wrong_size(dialogue):
    d = dialogue()
    sock = d.stack.socket()
    fails(errno.EINVAL, sock.setsockopt, TCPL, socket.TCP_NODELAY, b"\1")
    fails(errno.EINVAL, sock.setsockopt, socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0")


@pytest.mark.parametrize(
    ("level", "option", "value"),
    [
        (TCPL, socket.TCP_MAXSEG, 1),
        (TCPL, socket.TCP_MAXSEG, 100_000),
        (TCPL, socket.TCP_KEEPIDLE, 0),
        (TCPL, socket.TCP_KEEPINTVL, 0),
        (TCPL, socket.TCP_KEEPCNT, 0),
        (TCPL, socket.TCP_KEEPCNT, 1000),
        (TCPL, 18, -1),
    ],
)
def test_values_out_of_range(dialogue, level, option, value):
    d = dialogue()
    fails(errno.EINVAL, d.stack.socket().setsockopt, level, option, value)


def test_no_more_sockets_than_there_is_room(stack):
    s = stack(max_connections=8)
    with pytest.raises(OSError) as caught:
        for _ in range(100_000):
            s.socket()
    assert caught.value.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


def test_no_more_connections_than_there_is_room(stack):
    s = stack(max_connections=4)
    s.advance(10**12)
    results = []
    for port in range(1, 20):
        try:
            results.append(s.socket().connect_ex(("192.0.2.2", port)))
        except OSError as error:
            results.append(error.errno)
    assert results.count(errno.EINPROGRESS) == 4
    assert set(results) - {errno.EINPROGRESS} <= {
        errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE
    }  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        {"mtu": 100},
        {"prefix": 33},
        {"window_scale": 15},
        {"window_scale": -2},
        {"link": 7},
        {"max_connections": 0},
        {"packets": 0},
        {"cc": "vegas-of-mars"},
        {"rto_min_us": 0},
        {"rto_min_us": 5_000_000, "rto_max_us": 1_000_000},
        {"address": "0.0.0.0"},
        {"address": "224.0.0.1"},
        {"link": 1, "mac": "01:00:5e:00:00:01"},
    ],
    ids=str,
)
def test_configurations_out_of_range(stack, config):
    fails(errno.EINVAL, lambda: stack(**config))


def test_congestion_control_by_name(dialogue):
    d = dialogue(cc="cubic")
    c = d.open_passive()
    assert c.getsockopt(TCPL, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"cubic"


# Backlog


def test_the_backlog_is_a_bound(dialogue):
    d = dialogue(max_connections=64)
    listener = d.listen(80, backlog=3)
    d.strict = False
    for port in range(1001, 1021):
        d.send(TCP(sport=port, flags="S", seq=0))
        if any(int(p[TCP].flags) == 0x12 for p in d.drain()):
            d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    d.ignore()
    accepted = 0
    with pytest.raises(BlockingIOError):
        while True:
            listener.accept()
            accepted += 1
    assert 3 <= accepted <= 5


def test_a_full_backlog_serves_again(dialogue):
    d = dialogue(max_connections=64)
    listener = d.listen(80, backlog=1)
    d.strict = False
    for port in range(1001, 1011):
        d.send(TCP(sport=port, flags="S", seq=0))
        if any(int(p[TCP].flags) == 0x12 for p in d.drain()):
            d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    while listener.poll() & IN:
        listener.accept()[0].close()
    d.ignore()
    d.send(TCP(sport=2000, flags="S", seq=0))
    d.expect(TCP(dport=2000, flags="SA"))


def test_half_open_handshakes_are_bounded(dialogue):
    """What the backlog does not hold gets a cookie, and no memory: nothing is sent again."""
    d = dialogue(max_connections=64, rto_initial_us=1_000_000)
    d.listen(80, backlog=4)
    d.strict = False
    for port in range(1001, 1051):
        d.send(TCP(sport=port, flags="S", seq=0))
    d.ignore()
    again = {p[TCP].dport for p in d.drain(until=d.now + 1500)}
    assert again == {1001, 1002, 1003, 1004}


def test_half_open_handshakes_do_not_block_for_ever(dialogue):
    """A SYN flood: after the flood has timed out, the listener serves."""
    d = dialogue(max_connections=64)
    d.listen(80, backlog=4)
    d.strict = False
    for port in range(1001, 1201):
        d.send(TCP(sport=port, flags="S", seq=0))
    d.ignore(until=d.now + 300_000)
    d.send(TCP(sport=2000, flags="S", seq=0))
    d.expect(TCP(dport=2000, flags="SA"))


def test_a_flood_of_half_open_handshakes_makes_room(dialogue):
    """Who comes after it has a place as soon as the flood's oldest ones have had their time."""
    d = dialogue(max_connections=64)
    d.listen(80, backlog=4)
    for port in range(1001, 1005):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
    d.send(TCP(sport=2001, flags="S", seq=0), at=d.now + 55)
    d.expect(TCP(dport=2001, flags="SA"))
    # The oldest one is over, the others are not.
    for port, flags in ((1001, "R"), (1002, None), (1004, None), (2001, None)):
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
        if flags:
            d.expect(TCP(dport=port, flags=flags))
        else:
            d.silence()


def test_half_open_handshakes_end_in_any_order(dialogue):
    """The list of those under way survives that each of them completes, resets or gives up."""
    d = dialogue(max_connections=64)
    listener = d.listen(80, backlog=6)
    for port in range(1001, 1007):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
    for port in (1003, 1001, 1006):
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
    d.send(TCP(sport=1004, flags="R", seq=1))
    d.ignore()
    for _ in range(3):
        listener.accept()
    for port in range(2001, 2005):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
    d.send(TCP(sport=2005, flags="S", seq=0))
    d.expect(TCP(dport=2005, flags="SA"))  # a cookie
    d.send(TCP(sport=2001, flags="A", seq=1, ack=1))
    for _ in range(2):
        d.send(TCP(sport=2006, flags="S", seq=0))
        d.expect(TCP(dport=2006, flags="SA"))
    assert all(p[TCP].dport != 2005 for p in d.drain(until=d.now + 1500))


# poll


def test_poll_of_a_listener(dialogue):
    d = dialogue()
    listener = d.listen(80)
    assert listener.poll() == 0
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA"))
    assert listener.poll() == 0
    d.send(TCP(flags="A", seq=1, ack=1))
    assert listener.poll() == IN
    d.accept(listener)
    assert listener.poll() == 0


def test_poll_through_a_connections_life(dialogue):
    d = dialogue()
    sock = d.connect(80)
    assert sock.poll() == 0
    d.expect(TCP(flags="S"))
    d.send(TCP(flags="SA", seq=0, ack=1))
    d.expect(TCP(flags="A"))
    assert sock.poll() == OUT
    d.send(TCP(flags="A", seq=1, ack=1) / b"x")
    assert sock.poll() == IN | OUT
    sock.recv(10)
    assert sock.poll() == OUT
    d.ignore(until=d.now + 500)
    d.send(TCP(flags="FA", seq=2, ack=1))
    assert sock.poll() == IN | OUT | RDHUP
    sock.shutdown(socket.SHUT_WR)
    assert sock.poll() & (IN | HUP | RDHUP) == IN | HUP | RDHUP
    assert not sock.poll() & ERR


def test_poll_of_a_reset_connection(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="R", seq=1))
    assert c.poll() & (IN | ERR | HUP) == IN | ERR | HUP


def test_poll_of_a_new_socket(dialogue):
    d = dialogue()
    assert d.stack.socket().poll() & HUP


def test_writable_again_once_there_is_room(dialogue):
    d = dialogue(sndbuf=10_000)
    c = d.open_passive(window=65535)
    with pytest.raises(BlockingIOError):
        while True:
            c.send(b"x" * 5000)
    assert not c.poll() & OUT
    sink = dialogues.Sink()
    d.strict = False
    for _ in range(5):
        sink.take(d.drain(until=d.now + 10))
        d.send(TCP(flags="A", seq=1, ack=sink.ack))
    assert c.poll() & OUT


# Options


def test_buffers_are_read_back(dialogue):
    d = dialogue()
    sock = d.stack.socket()
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 50_000)
        assert sock.getsockopt(socket.SOL_SOCKET, option) in (50_000, 100_000)  # Linux doubles


def test_a_receive_buffer_bounds_the_window(dialogue):
    d = dialogue(rcvbuf=65_535)
    d.stack_port = 80
    listener = d.stack.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8000)
    listener.bind((d.stack_address, 80))
    listener.listen(4)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    assert d.expect(TCP(flags="SA"))[TCP].window <= 16_000


def test_options_of_a_listening_socket_are_those_of_the_next_connection(dialogue):
    d = dialogue(rcvbuf=65_535)
    d.stack_port = 80
    listener = d.listen(80)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8000)
    listener.setsockopt(TCPL, socket.TCP_MAXSEG, 700)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    answer = d.expect(TCP(flags="SA"))
    assert answer[TCP].window <= 16_000
    assert dialogues.option(answer, "MSS") == 700


def test_the_receive_buffer_of_a_connection_grows(dialogue):
    d = dialogue(rcvbuf=8000, delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(flags="PA", seq=1, ack=1) / (b"x" * 1000))
    assert d.expect(TCP(flags="A", ack=1001))[TCP].window <= 8000
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_000)
    d.ignore()
    d.send(TCP(flags="PA", seq=1001, ack=1) / (b"x" * 1000))
    assert 28_000 <= d.expect(TCP(flags="A", ack=2001))[TCP].window <= 32_000


def test_switches_are_read_back(dialogue):
    sock = dialogue().stack.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # allowed, and nothing to do
    for name in (socket.TCP_NODELAY, socket.TCP_CORK):
        for value in (1, 0):
            sock.setsockopt(TCPL, name, value)
            assert sock.getsockopt(TCPL, name) == value


def test_the_local_port_of_a_bound_socket_is_used(dialogue):
    d = dialogue()
    d.connect(80, local_port=4321)
    d.expect(TCP(flags="S", sport=4321))


def test_a_bound_port_serves_two_peers(dialogue):
    d = dialogue()
    a, b = d.stack.socket(), d.stack.socket()
    a.bind((d.stack_address, 4321))
    assert a.connect_ex((d.peer_address, 80)) == errno.EINPROGRESS
    fails(errno.EADDRINUSE, b.bind, (d.stack_address, 4321))


def test_port_zero_is_any_port(dialogue):
    d = dialogue()
    bound, listening = d.stack.socket(), d.stack.socket()
    bound.bind((d.stack_address, 0))
    bound.connect_ex((d.peer_address, 80))
    assert d.expect(TCP(flags="S"))[TCP].sport >= 1024
    listening.listen(1)  # without bind: a port of the stack's choice
    assert listening.poll() == 0


def test_listening_again_changes_the_backlog(dialogue):
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


def test_maxseg_of_a_connection(dialogue):
    d = dialogue()
    c = d.open_passive(mss=1000)
    assert c.getsockopt(TCPL, socket.TCP_MAXSEG) == 1000
    c.setsockopt(TCPL, socket.TCP_MAXSEG, 500)
    c.send(b"x" * 1000)
    assert [len(dialogues.payload(p)) for p in d.drain()] == [500, 500]


def test_options_that_tell_what_a_socket_is(dialogue):
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


def test_more_to_come(dialogue):
    """MSG_MORE holds a short segment back, like a cork for one call."""
    d = dialogue()
    c = d.open_passive(rtt=20)
    c.send(b"header ", socket.MSG_MORE)
    d.silence(during=20)
    c.send(b"body")
    d.expect(TCP(flags="PA", seq=1) / b"header body")


# TCP_INFO


def test_tcp_info(dialogue):
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


def test_tcp_info_shows_what_was_agreed(dialogue):
    d = dialogue(timestamps=1, window_scale=5)
    c = d.open_passive(timestamps=True, wscale=3)
    info = c.tcp_info()
    assert info["options"] & 1  # timestamps
    assert info["options"] & 2  # SACK
    assert info["options"] & 4  # window scale
    assert (info["snd_wscale"], info["rcv_wscale"]) == (3, 5)


def test_tcp_info_may_be_asked_for_in_part(dialogue):
    d = dialogue()
    c = d.open_passive()
    assert len(c.getsockopt(TCPL, socket.TCP_INFO, 8)) == 8


# Driving the stack


def test_the_deadline_asks_for_pending_output(dialogue):
    """Who calls only when next_deadline says so must not leave data lying."""
    d = dialogue()
    c = d.open_passive()
    c.send(b"x")
    if not d.stack.output:
        assert d.stack.next_deadline() is not None
        assert d.stack.next_deadline() <= d.stack.now
    d.expect(TCP(seq=1) / b"x")


def test_an_idle_stack_has_no_deadline(dialogue):
    d = dialogue()
    c = d.open_passive()
    assert d.stack.next_deadline() is None
    c.send(b"x")
    d.expect(TCP(seq=1) / b"x")
    assert d.stack.next_deadline() is not None
    d.send(TCP(flags="A", seq=1, ack=2))
    assert d.stack.next_deadline() is None


def test_the_same_calls_give_the_same_frames(stack):
    def run():
        s = stack(seed=(9, 9))
        s.advance(10**12)
        for port in range(1, 10):
            s.socket().connect_ex(("192.0.2.2", port))
        for step in range(1, 20):
            s.advance(10**12 + step * 10**9)
        return s.take()

    assert run() == run()


def test_stacks_come_and_go(stack):
    for _ in range(200):
        s = stack()
        s.advance(10**12)
        listener = s.socket()
        listener.bind(("192.0.2.1", 80))
        listener.listen(4)
        s.socket().connect_ex(("192.0.2.2", 80))
