# SPDX-License-Identifier: Apache-2.0
"""Keepalives (RFC 9293, 3.8.4) and the user timeout (RFC 5482)."""

from __future__ import annotations

import errno
import socket

import pytest
from scapy.layers.inet import TCP

from harp.testing.tcp_info import state_name

TCP_USER_TIMEOUT = 18


def keep_alive(sock, idle=10, interval=2, count=3):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def test_keepalive_is_off_by_default(dialogue):
    """MUST-25."""
    d = dialogue()
    c = d.open_passive()
    d.silence(during=24 * 3600 * 1000)
    assert state_name(c.tcp_info()) == "ESTABLISHED"


def test_keepalive_probes_idle_connection(dialogue):
    d = dialogue()
    c = d.open_passive()
    keep_alive(c)
    began = d.now
    probe = d.expect(TCP(flags="A", ack=1), at=began + 10_000)
    assert probe[TCP].seq == 0  # SND.NXT - 1: what the peer has already
    d.send(TCP(flags="A", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=0, ack=1), at=began + 20_000)
    d.send(TCP(flags="A", seq=1, ack=1))
    assert c.error() == 0


def test_keepalive_detects_dead_peer(dialogue):
    d = dialogue()
    c = d.open_passive()
    keep_alive(c)
    began = d.now
    for i in range(3):
        d.expect(TCP(flags="A", seq=0, ack=1), at=began + 10_000 + 2000 * i)
    d.ignore(until=began + 16_500)
    assert c.error() == errno.ETIMEDOUT
    d.silence(during=100_000)


def test_traffic_postpones_keepalive_probe(dialogue):
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    keep_alive(c)
    began = d.now
    d.send(TCP(seq=1, ack=1) / b"x", at=began + 7_000)
    d.expect(TCP(flags="A", ack=2))
    d.expect(TCP(flags="A", seq=0, ack=2), at=began + 17_000)


def test_keepalive_answer_resets_probe_count(dialogue):
    d = dialogue()
    c = d.open_passive()
    keep_alive(c)
    began = d.now
    d.expect(TCP(flags="A", seq=0), at=began + 10_000)
    d.expect(TCP(flags="A", seq=0), at=began + 12_000)
    d.send(TCP(flags="A", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=0), at=began + 22_000)
    d.expect(TCP(flags="A", seq=0), at=began + 24_000)
    d.send(TCP(flags="A", seq=1, ack=1))
    assert c.error() == 0


def test_unread_peer_fin_suspends_keepalive(dialogue):
    """Its last bytes wait for their reader, and it may be gone by then."""
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    keep_alive(c)
    d.send(TCP(flags="PA", seq=1, ack=1) / b"last words")
    d.expect(TCP(flags="A", ack=11))
    d.send(TCP(flags="FA", seq=11, ack=1))
    d.expect(TCP(flags="A", ack=12))
    ended = d.now
    d.silence(during=95_000)
    assert c.recv(100) == b"last words"
    assert c.recv(100) == b""
    d.expect(TCP(flags="A", seq=0, ack=12), at=ended + 100_000)  # we may have something to say


def test_reset_in_answer_to_keepalive_gives_econnreset(dialogue):
    d = dialogue()
    c = d.open_passive()
    keep_alive(c)
    d.expect(TCP(flags="A", seq=0), within=11_000)
    d.send(TCP(flags="R", seq=1))
    assert c.error() == errno.ECONNRESET


def test_keepalive_probe_of_peer_is_answered(dialogue):
    """With and without the one byte of garbage that old systems add."""
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="A", seq=0, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(flags="A", seq=0, ack=1) / b"\0")
    d.expect(TCP(flags="A", seq=1, ack=1))
    with pytest.raises(BlockingIOError):
        c.recv(10)


def test_keepalive_can_be_switched_off(dialogue):
    d = dialogue()
    c = d.open_passive()
    keep_alive(c)
    d.run(d.now + 5000)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
    d.silence(during=100_000)


def test_keepalive_options_are_read_back(dialogue):
    d = dialogue()
    c = d.open_passive()
    keep_alive(c, 33, 4, 5)
    assert c.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert c.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 33
    assert c.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 4
    assert c.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 5


# User timeout


def test_user_timeout_overrides_keepcnt(dialogue):
    """As in Linux: TCP_KEEPCNT is without effect beside TCP_USER_TIMEOUT."""
    d = dialogue()
    c = d.open_passive()
    keep_alive(c, idle=2, interval=1, count=3)
    c.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 20_000)
    began = d.now
    d.ignore(until=began + 19_500)
    assert c.error() == 0
    d.ignore(until=began + 20_500)
    assert c.error() == errno.ETIMEDOUT


def test_user_timeout_ends_connection_with_unacked_data(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=20)
    c.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 5000)
    assert c.getsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT) == 5000
    c.send(b"x")
    began = d.now
    d.ignore(until=began + 4500)
    assert c.error() == 0
    d.ignore(until=began + 7500)
    assert c.error() == errno.ETIMEDOUT
    d.silence(during=100_000)


def test_progress_postpones_user_timeout(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=20)
    c.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 1000)
    d.strict = False
    c.send(b"x" * 100)
    for i in range(1, 100):
        d.send(TCP(flags="A", seq=1, ack=1 + i), at=d.now + 300)
    assert c.error() == 0
    d.ignore(until=d.now + 5000)
    assert c.error() == errno.ETIMEDOUT


def test_user_timeout_does_not_end_idle_connection(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=20)
    c.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 1000)
    c.send(b"x")
    d.expect(TCP(seq=1) / b"x")
    d.send(TCP(flags="A", seq=1, ack=2), at=d.now + 20)
    d.silence(during=3_600_000)
    assert c.error() == 0


@pytest.mark.parametrize("words", [b"", b"last words"])
def test_an_acknowledged_fin_ends_it(dialogue, words):
    """Nothing of ours is under way any more: the peer may take its time with what it has to say."""
    d = dialogue()
    c = d.open_passive(rtt=20)
    c.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 1000)
    c.send(words)
    c.shutdown(socket.SHUT_WR)
    end = 1 + len(words)
    assert [p[TCP].flags for p in d.drain()][-1] == "FA"
    d.send(TCP(flags="A", seq=1, ack=end), at=d.now + 20)
    d.send(TCP(flags="A", seq=1, ack=end + 1), at=d.now + 20)
    d.silence(during=3_600_000)
    d.send(TCP(flags="PA", seq=1, ack=end + 1) / b"at last")
    assert c.recv(100) == b"at last"
    assert state_name(c.tcp_info()) == "FIN_WAIT2"


def test_user_timeout_counts_data_held_by_zero_window(dialogue):
    d = dialogue()
    c = d.open_passive(window=0, rtt=20)
    c.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 5000)
    c.send(b"x")
    began = d.now
    d.ignore(until=began + 4500)
    assert c.error() == 0
    d.ignore(until=began + 10_000)
    assert c.error() == errno.ETIMEDOUT


def test_answered_zero_window_probes_prevent_user_timeout(dialogue):
    """RFC 9293, 3.8.6.1: a peer that answers probes lives."""
    d = dialogue(rto_max_us=1_000_000)
    c = d.open_passive(window=0, rtt=20)
    c.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 5000)
    c.send(b"x")
    while d.now < 60_000:
        if d.drain(until=d.now + 50):
            d.send(TCP(flags="A", seq=1, ack=1, window=0))
    assert c.error() == 0


def test_user_timeout_of_handshake_ends_when_established(dialogue):
    """Set before the connection was open, it bounds the SYN; the open connection may idle."""
    d = dialogue()
    c = d.open_active(
        rtt=20, before=lambda s: s.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 1000)
    )
    d.silence(during=3_600_000)
    assert c.error() == 0
    assert state_name(c.tcp_info()) == "ESTABLISHED"


def test_unfinished_handshake_gets_no_keepalive_probe(dialogue):
    """RFC 9293, 3.8.4: only an idle, synchronized connection is probed. The retransmissions of the
    SYN decide when a connect has failed."""
    d = dialogue()
    sock = d.stack.socket()
    keep_alive(sock)
    d.peer_port = 80
    sock.connect_ex((d.peer_address, 80))
    sent = d.drain(until=60_000)
    assert {str(p[TCP].flags) for p in sent} == {"S"}
    assert sock.error() == 0


def test_peers_probes_answer_none_of_ours(dialogue):
    """The peer's keepalive probes arrive, and our segments are lost: neither side may keep the
    connection for the other's sake."""
    d = dialogue()
    c = d.open_passive()
    keep_alive(c)
    began = d.now
    d.strict = False
    while d.now < began + 17_000:
        d.send(TCP(flags="A", seq=0, ack=1), at=d.now + 1000)
    assert c.error() == errno.ETIMEDOUT


def test_peers_probes_do_not_hold_off_user_timeout(dialogue):
    """The peer's window is closed, and our window probes are lost. Its own probes arrive."""
    d = dialogue()
    c = d.open_passive()
    c.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, 10_000)
    d.send(TCP(flags="A", seq=1, ack=1, window=0))
    c.send(b"x")
    began = d.now
    d.strict = False
    while d.now < began + 15_000:
        d.send(TCP(flags="A", seq=0, ack=1, window=0), at=d.now + 1000)
    assert c.error() == errno.ETIMEDOUT
