# SPDX-License-Identifier: Apache-2.0
"""The socket calls of harp/stack.h: errors and poll bits."""

from __future__ import annotations

import errno
import select
import socket

import pytest
from scapy.layers.inet import TCP

from harp.testing import dialogue as dialogues
from harp.testing._stack import Socket

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


def test_second_connect_gives_ealready_or_eisconn(dialogue):
    d = dialogue()
    sock = d.connect(80)
    assert sock.connect_ex((d.peer_address, 80)) == errno.EALREADY
    d.expect(TCP(flags="S"))
    d.send(TCP(flags="SA", seq=0, ack=1))
    d.ignore()
    assert sock.connect_ex((d.peer_address, 80)) in (0, errno.EISCONN)
    assert sock.connect_ex((d.peer_address, 80)) == errno.EISCONN


def test_refused_connection_is_reported_by_every_call(dialogue):
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


def test_unconnected_socket_is_enotconn(dialogue):
    d = dialogue()
    sock = d.stack.socket()
    fails(errno.ENOTCONN, sock.recv, 10)
    with pytest.raises(OSError) as caught:
        sock.send(b"x")
    assert caught.value.errno in (errno.ENOTCONN, errno.EPIPE)  # Linux says EPIPE


def test_send_in_syn_sent_would_block(dialogue):
    d = dialogue()
    sock = d.connect(80)
    fails(errno.EAGAIN, sock.send, b"x")
    fails(errno.EAGAIN, sock.recv, 1)


def test_recv_without_data_would_block(dialogue):
    d = dialogue()
    fails(errno.EAGAIN, d.open_passive().recv, 10)


def test_accept_without_connection_would_block(dialogue):
    d = dialogue()
    fails(errno.EAGAIN, d.listen(80).accept)


def test_send_with_full_buffer_would_block(dialogue):
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


FASTOPEN, ZEROCOPY, NOBODYS = 0x20000000, 0x4000000, 1 << 24  # <linux/socket.h>


@pytest.mark.parametrize("flag", [socket.MSG_OOB, FASTOPEN, ZEROCOPY, NOBODYS], ids=hex)
def test_unsupported_message_flags_are_refused(dialogue, flag):
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    fails(errno.EOPNOTSUPP, c.send, b"x", flag)
    d.send(TCP(flags="A", seq=1, ack=1) / b"data")
    d.expect(TCP(flags="A", ack=5))
    fails(errno.EINVAL, c.recv, 1, flag)
    assert c.recv(10) == b"data"


def test_harmless_message_flags_are_accepted(dialogue):
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(flags="A", seq=1, ack=1) / b"data")
    d.expect(TCP(flags="A", ack=5))
    known = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
    assert c.recv(10, known | socket.MSG_WAITALL) == b"data"
    assert c.send(b"x", known) == 1


def test_send_after_reset_is_econnreset_then_epipe(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="R", seq=1))
    fails(errno.ECONNRESET, c.send, b"x")
    fails(errno.EPIPE, c.send, b"x")


def test_bind_to_port_in_use_is_eaddrinuse(dialogue):
    d = dialogue()
    d.listen(80)
    sock = d.stack.socket()
    with pytest.raises(OSError) as caught:
        sock.bind((d.stack_address, 80))
        sock.listen(1)
    assert caught.value.errno == errno.EADDRINUSE


def test_listener_close_frees_port(dialogue):
    d = dialogue()
    d.listen(80).close()
    d.listen(80)


def test_bind_to_foreign_address_is_eaddrnotavail(dialogue):
    d = dialogue()
    fails(errno.EADDRNOTAVAIL, d.stack.socket().bind, ("192.0.2.77", 80))


def test_second_bind_is_einval(dialogue):
    d = dialogue()
    sock = d.stack.socket()
    sock.bind((d.stack_address, 80))
    fails(errno.EINVAL, sock.bind, (d.stack_address, 81))


def test_listen_on_connection_is_einval(dialogue):
    d = dialogue()
    fails(errno.EINVAL, d.open_passive().listen, 1)


def test_connect_on_listener_fails(dialogue):
    d = dialogue()
    assert d.listen(80).connect_ex((d.peer_address, 80)) in (errno.EISCONN, errno.EINVAL,
                                                             errno.EOPNOTSUPP)  # fmt: skip


def test_accept_on_connection_is_einval(dialogue):
    d = dialogue()
    fails(errno.EINVAL, d.open_passive().accept)


def test_calls_on_closed_socket_are_ebadf(dialogue):
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


def test_calls_on_unknown_socket_number_are_ebadf(dialogue):
    from harp.testing._stack import Socket

    d = dialogue()
    for number in (-1, 5, 1 << 20, -(1 << 31), (1 << 31) - 1):
        sock = Socket(d.stack, number)
        fails(errno.EBADF, sock.poll)
        fails(errno.EBADF, sock.send, b"x")
        fails(errno.EBADF, sock.close)


def test_unknown_options_are_enoprotoopt(dialogue):
    d = dialogue()
    sock = d.stack.socket()
    fails(errno.ENOPROTOOPT, sock.setsockopt, TCPL, 9999, 1)
    fails(errno.ENOPROTOOPT, sock.getsockopt, TCPL, 9999)
    for level in (socket.SOL_SOCKET, socket.IPPROTO_IP):
        fails(errno.ENOPROTOOPT, sock.setsockopt, level, 9999, 1)
        fails(errno.ENOPROTOOPT, sock.getsockopt, level, 9999)


def test_options_of_wrong_size_are_einval(dialogue):
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
def test_option_values_out_of_range_are_einval(dialogue, level, option, value):
    d = dialogue()
    fails(errno.EINVAL, d.stack.socket().setsockopt, level, option, value)


def test_number_of_sockets_is_bounded(stack):
    s = stack(max_connections=8)
    with pytest.raises(OSError) as caught:
        for _ in range(100_000):
            s.socket()
    assert caught.value.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


def test_number_of_connections_is_bounded(stack):
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
def test_configuration_out_of_range_is_einval(stack, config):
    fails(errno.EINVAL, lambda: stack(**config))


def test_tcp_congestion_reports_configured_algorithm(dialogue):
    d = dialogue(cc="cubic")
    c = d.open_passive()
    assert c.getsockopt(TCPL, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"cubic"


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


def test_poll_through_connection_lifetime(dialogue):
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


def test_poll_reports_writable_after_acks(dialogue):
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


# Those that nobody has accepted yet


def queued(d, listener, ports):
    for port in ports:
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA"))
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))


def test_unaccepted_socket_number_is_ebadf(dialogue):
    """Guessing it reaches nothing, and each is accepted once."""
    d = dialogue()
    listener = d.listen(80)
    queued(d, listener, (1001, 1002, 1003))
    for number in set(range(64)) - {listener.number}:
        fails(errno.EBADF, Socket(d.stack, number).close)
    accepted = [d.accept(listener) for _ in range(3)]
    assert len({c.number for c in accepted}) == 3
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_accepted_socket_does_not_inherit_connect_error(dialogue):
    d = dialogue()
    sock = d.stack.socket()
    sock.bind(("0.0.0.0", 80))
    sock.connect_ex((d.peer_address, 81))
    d.settle()
    d.stack_port = 80
    d.expect(TCP(flags="S", dport=81))
    d.send(TCP(sport=81, flags="RA", seq=0, ack=1))
    assert sock.poll() & ERR
    sock.listen(4)
    queued(d, sock, (1001,))
    c = d.accept(sock)
    assert c.error() == 0
    assert c.send(b"x") == 1
