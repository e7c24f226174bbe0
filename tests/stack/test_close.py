# SPDX-License-Identifier: Apache-2.0
"""Closing: RFC 9293, 3.6, and the FIN in every state of 3.10.7."""

from __future__ import annotations

import errno
import socket
import struct

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import Sink, option
from harp.testing.tcp_info import state_name


def state(sock) -> str:
    return state_name(sock.tcp_info())


def shut(sock):
    sock.shutdown(socket.SHUT_WR)


def test_active_close_reaches_time_wait(dialogue):
    d = dialogue()
    c = d.open_passive()
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    assert state(c) == "FIN_WAIT1"
    d.send(TCP(flags="A", seq=1, ack=2))
    assert state(c) == "FIN_WAIT2"
    d.send(TCP(flags="FA", seq=1, ack=2))
    d.expect(TCP(flags="A", seq=2, ack=2))
    assert state(c) == "TIME_WAIT"
    assert c.recv(10) == b""


def test_passive_close_removes_connection(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=2))
    assert state(c) == "CLOSE_WAIT"
    assert c.recv(10) == b""
    c.close()
    d.expect(TCP(flags="FA", seq=1, ack=2))
    d.send(TCP(flags="A", seq=2, ack=2))
    d.silence(during=600_000)
    d.send(TCP(flags="A", seq=2, ack=2))
    d.expect(TCP(flags="R", seq=2))  # nothing is left


def test_reset_after_fin_keeps_acked_data(dialogue):
    """What was acknowledged is never dropped. The reset says that the peer's end is gone, as a
    process is that has ended."""
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(flags="PA", seq=1, ack=1) / b"last words")
    d.expect(TCP(flags="A", ack=11))
    d.send(TCP(flags="FA", seq=11, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=12))
    d.send(TCP(flags="R", seq=12))
    assert c.recv(100) == b"last words"
    assert c.recv(100) == b""
    c.close()
    d.silence(during=10_000)  # nobody is there to be told


def test_reset_after_fin_with_unacked_data_is_epipe(dialogue):
    """That will not arrive, and its sender has to know."""
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(flags="PA", seq=1, ack=1) / b"last words")
    d.expect(TCP(flags="A", ack=11))
    d.send(TCP(flags="FA", seq=11, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=12))
    c.send(b"an answer")
    d.expect(TCP(flags="PA", seq=1, ack=12), length=9)
    d.send(TCP(flags="R", seq=12))
    assert c.error() == errno.EPIPE


def test_simultaneous_close_reaches_time_wait(dialogue):
    """Figure 13: FINs cross, CLOSING, TIME-WAIT."""
    d = dialogue()
    c = d.open_passive()
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=2, ack=2))
    assert state(c) == "CLOSING"
    d.send(TCP(flags="A", seq=2, ack=2))
    assert state(c) == "TIME_WAIT"


def test_fin_with_ack_of_fin_enters_time_wait(dialogue):
    d = dialogue()
    c = d.open_passive()
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="FA", seq=1, ack=2))
    d.expect(TCP(flags="A", seq=2, ack=2))
    assert state(c) == "TIME_WAIT"


def test_out_of_order_data_beyond_fin_is_dropped(dialogue):
    """A peer that contradicts itself: bytes beyond a hole in which there is only its FIN."""
    d = dialogue()
    c = d.open_passive(sack=True)
    d.send(TCP(flags="A", seq=3, ack=1) / b"beyond")
    d.expect(TCP(flags="A", ack=1, options=[("SAck", (3, 9))]))
    d.send(TCP(flags="FA", seq=1, ack=1))
    assert option(d.expect(TCP(flags="A", seq=1, ack=2)), "SAck") is None
    assert state(c) == "CLOSE_WAIT"
    assert c.recv(100) == b""


def test_a_fin_follows_all_data(dialogue):
    d = dialogue()
    c = d.open_passive()
    c.send(b"x" * 3000)
    shut(c)
    d.expect(TCP(flags="A", seq=1), length=1460)
    d.expect(TCP(flags="A", seq=1461), length=1460)
    d.expect(TCP(flags="PA", seq=2921), length=80)
    d.expect(TCP(flags="FA", seq=3001), length=0)
    d.send(TCP(flags="A", seq=1, ack=3001))
    assert state(c) == "FIN_WAIT1"
    d.ignore()
    d.send(TCP(flags="A", seq=1, ack=3002))
    assert state(c) == "FIN_WAIT2"


def test_half_closed_connection_still_receives(dialogue):
    """RFC 9293, 3.6.1 (MUST-11 and on): after our FIN the peer may talk on."""
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="A", seq=1, ack=2) / b"still ")
    d.expect(TCP(flags="A", seq=2, ack=7))
    d.send(TCP(flags="A", seq=7, ack=2) / b"here")
    d.expect(TCP(flags="A", seq=2, ack=11))
    assert c.recv(100) == b"still here"
    d.silence(during=3_600_000)  # no hurry: the socket is still open
    d.send(TCP(flags="FA", seq=11, ack=2) / b"!")
    d.expect(TCP(flags="A", seq=2, ack=13))
    assert c.recv(100) == b"!"
    assert c.recv(100) == b""


def test_data_before_ack_of_fin_is_accepted(dialogue):
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1) / b"crossed")
    d.expect(TCP(flags="A", seq=2, ack=8))
    assert c.recv(100) == b"crossed"
    assert state(c) == "FIN_WAIT1"


def test_close_wait_still_sends(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=2))
    c.send(b"an answer")
    d.expect(TCP(flags="PA", seq=1, ack=2) / b"an answer")
    d.send(TCP(flags="A", seq=2, ack=10))
    c.close()
    d.expect(TCP(flags="FA", seq=10, ack=2))
    d.send(TCP(flags="A", seq=2, ack=11))


def test_lost_fin_is_retransmitted(dialogue):
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="FA", seq=1, ack=1), within=1000)
    d.expect(TCP(flags="FA", seq=1, ack=1), within=2000)
    d.send(TCP(flags="A", seq=1, ack=2))
    assert state(c) == "FIN_WAIT2"
    d.ignore()
    d.silence(during=10_000)


def test_lost_fin_after_acked_data_is_retransmitted(dialogue):
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    c.send(b"data")
    d.expect(TCP(seq=1) / b"data")
    shut(c)
    d.expect(TCP(flags="FA", seq=5, ack=1))
    d.send(TCP(flags="A", seq=1, ack=5), at=d.now + 20)
    d.expect(TCP(flags="FA", seq=5, ack=1), within=1000)


def test_duplicate_fin_is_acked_again(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=1, ack=1) / b"x")
    d.expect(TCP(flags="A", seq=1, ack=3))
    d.send(TCP(flags="FA", seq=1, ack=1) / b"x")
    d.expect(TCP(flags="A", seq=1, ack=3))
    assert c.recv(10) == b"x"
    assert c.recv(10) == b""


def test_data_after_peer_fin_is_ignored(dialogue):
    """RFC 9293, 3.10.7.4, seventh: it should not occur; ignore the segment text."""
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=2))
    d.send(TCP(flags="A", seq=2, ack=1) / b"beyond the end")
    d.ignore(until=d.now + 500)
    assert c.recv(100) == b""
    assert state(c) == "CLOSE_WAIT"


# TIME-WAIT


def to_time_wait(d):
    c = d.open_passive()
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="FA", seq=1, ack=2))
    d.expect(TCP(flags="A", seq=2, ack=2))
    return c


@pytest.mark.parametrize("again", [False, True])
def test_time_wait_expires(dialogue, again):
    """RFC 9293, 3.4.2: 2 MSL; HARP's wait may be shorter than 4 minutes, not endless."""
    d = dialogue()
    c = to_time_wait(d)
    c.close()
    d.silence(during=1000)
    if again:  # begins it anew
        d.send(TCP(flags="FA", seq=1, ack=2))
        d.expect(TCP(flags="A", seq=2, ack=2))
    d.silence(during=300_000)
    d.send(TCP(flags="A", seq=2, ack=2))
    d.expect(TCP(flags="R", seq=2))
    assert d.stack.next_deadline() is None


def test_time_wait_acknowledges_stray_data(dialogue):
    d = dialogue()
    to_time_wait(d)
    d.send(TCP(flags="A", seq=1, ack=2) / b"old")
    d.expect(TCP(flags="A", seq=2, ack=2))


def test_time_wait_accepts_newer_syn(dialogue):
    """RFC 9293, 3.6.1 (MAY-2): a SYN above what was used begins a new connection."""
    d = dialogue()
    c = to_time_wait(d)
    c.close()
    listener = d.listen(80)
    d.forget(peer_iss=d.peer_iss + 100_000)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1) / b"new")
    assert d.accept(listener).recv(10) == b"new"


def test_full_table_evicts_oldest_time_wait(dialogue):
    d = dialogue(max_connections=2)
    for port in (5001, 5002):
        d.peer_port = port
        to_time_wait(d).close()
        d.run(d.now + 1000)
    d.listen(80)
    d.send(TCP(sport=5003, flags="S", seq=0))
    d.expect(TCP(dport=5003, flags="SA", seq=0, ack=1))
    d.send(TCP(sport=5002, flags="FA", seq=1, ack=2))
    d.expect(TCP(dport=5002, flags="A", ack=2))
    d.send(TCP(sport=5001, flags="FA", seq=1, ack=2))
    d.expect(TCP(dport=5001, flags="R"))


def test_time_wait_acks_old_syn(dialogue):
    d = dialogue()
    c = to_time_wait(d)
    c.close()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=-1000))
    d.expect(TCP(flags="A", seq=2, ack=2))
    with pytest.raises(BlockingIOError):
        listener.accept()


# The application's side


def test_close_with_unread_data_sends_reset(dialogue):
    """RFC 9293, 3.6.1 with RFC 2525, 2.17: unread data is lost, and the peer must know."""
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="A", seq=1, ack=1) / b"never read")
    d.silence()
    c.close()
    d.settle()
    reset = [p for p in d.drain() if int(p[TCP].flags) & 0x04]
    assert len(reset) == 1
    d.send(TCP(flags="A", seq=11, ack=1))
    d.expect(TCP(flags="R"))


def test_data_after_close_gets_reset(dialogue):
    d = dialogue()
    c = d.open_passive()
    c.close()
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="A", seq=1, ack=2))
    d.send(TCP(flags="A", seq=1, ack=2) / b"nobody listens")
    answer = d.drain()
    assert any(int(p[TCP].flags) & 0x04 for p in answer)


def test_orphaned_fin_wait_2_times_out(dialogue):
    d = dialogue()
    c = d.open_passive()
    c.close()
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="A", seq=1, ack=2))
    d.ignore(until=d.now + 600_000)
    assert d.stack.next_deadline() is None
    assert d.stack.counters().get("tcp_connections", 0) == 0


def test_close_sends_remaining_data_and_fin(dialogue):
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    c.send(b"unsent and soon orphaned")
    c.close()
    for wait in (0, 3000):  # the first time it is lost
        sink = Sink()
        sink.take(d.drain(until=d.now + wait))
        assert sink.data == b"unsent and soon orphaned"
        assert sink.ended
    d.send(TCP(flags="FA", seq=1, ack=26))
    d.expect(TCP(flags="A", seq=26, ack=2))


def test_zero_linger_close_sends_reset(dialogue):
    d = dialogue()
    c = d.open_passive()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.send(b"lost")
    d.ignore()
    c.close()
    d.settle()
    (reset,) = d.drain()
    assert int(reset[TCP].flags) & 0x04
    assert reset[TCP].seq == 5
    d.silence(during=100_000)


def test_linger_is_read_back(dialogue):
    d = dialogue()
    c = d.open_passive()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 7))
    assert struct.unpack("ii", c.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) == (1, 7)


def test_close_in_syn_sent_sends_nothing(dialogue):
    """RFC 9293, 3.10.4: SYN-SENT, delete the TCB."""
    d = dialogue()
    c = d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    c.close()
    d.silence(during=100_000)
    d.send(TCP(flags="SA", seq=0, ack=1))
    d.expect(TCP(flags="R", seq=1))


def test_listener_close_resets_unaccepted_connections(dialogue):
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1))
    listener.close()
    d.settle()
    assert any(int(p[TCP].flags) & 0x04 for p in d.drain())
    d.send(TCP(sport=999, flags="S", seq=0))
    d.expect(TCP(flags="RA", dport=999))


# Unread data, and resets, on the way out


def test_end_of_last_ack_keeps_unread_data(dialogue):
    """LAST-ACK is over, but the application has not read everything yet."""
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=1, ack=1) / b"read me later")
    d.expect(TCP(flags="A", ack=15))
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=15))
    d.send(TCP(flags="A", seq=15, ack=2))
    d.silence(during=600_000)
    assert c.recv(100) == b"read me later"
    assert c.recv(100) == b""
    c.close()


def test_time_wait_keeps_unread_data(dialogue):
    d = dialogue()
    c = d.open_passive()
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="FA", seq=1, ack=2) / b"read me later")
    d.expect(TCP(flags="A", seq=2, ack=15))
    d.silence(during=1_000_000)
    assert c.recv(100) == b"read me later"
    assert c.recv(100) == b""


def test_close_with_unread_data_in_time_wait_sends_nothing(dialogue):
    """Both sides have acknowledged everything, so the peer needs no RST."""
    d = dialogue()
    c = d.open_passive()
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="FA", seq=1, ack=2) / b"nobody reads me")
    d.expect(TCP(flags="A", seq=2, ack=17))
    c.close()
    d.silence(during=1000)
    d.send(TCP(flags="A", seq=17, ack=2))
    d.expect(TCP(flags="R", seq=2))


def test_reset_in_close_wait_gives_error(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", ack=2))
    d.send(TCP(flags="R", seq=2))
    assert c.error() in (errno.EPIPE, errno.ECONNRESET)


def test_reset_in_last_ack_closes_without_error(dialogue):
    """RFC 9293, 3.10.7.4, second: enter CLOSED; both sides had said all they had to say."""
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", ack=2))
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=2))
    d.send(TCP(flags="R", seq=2))
    assert state(c) == "CLOSE"
    d.silence(during=100_000)


@pytest.mark.parametrize("acknowledged", [0, 3, 7])
def test_reset_in_last_ack_with_unacked_data_is_econnreset(dialogue, acknowledged):
    """The peer may not have received unacknowledged data, so the close reports an error."""
    d = dialogue()
    c = d.open_passive(rtt=20)
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", ack=2))
    c.send(b"seven b")
    shut(c)
    d.ignore()
    d.send(TCP(flags="A", seq=2, ack=1 + acknowledged))
    d.ignore()
    assert state(c) == "LAST_ACK"
    d.send(TCP(flags="R", seq=2))
    assert state(c) == "CLOSE"
    assert c.error() == (errno.ECONNRESET if acknowledged < 7 else 0)


@pytest.mark.parametrize("how", ["SYN_RECV", "FIN_WAIT1", "FIN_WAIT2"])
def test_reset_in_other_states_gives_error(dialogue, how):
    d = dialogue()
    if how == "SYN_RECV":
        c = d.connect(80)
        d.expect(TCP(flags="S"))
        d.send(TCP(flags="S", seq=0))
        d.expect(TCP(flags="SA", seq=0, ack=1))
    else:
        c = d.open_passive()
        shut(c)
        d.expect(TCP(flags="FA", seq=1))
        if how == "FIN_WAIT2":
            d.send(TCP(flags="A", seq=1, ack=2))
    assert state(c) == how
    d.send(TCP(flags="R", seq=1))
    assert c.error() in (errno.ECONNRESET, errno.ECONNREFUSED)
    d.silence(during=100_000)


def test_a_newer_timestamp_reopens_time_wait(dialogue):
    """RFC 6191: also with a sequence number below the old connection's."""
    d = dialogue(timestamps=1)
    c = d.open_passive(timestamps=True)
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="FA", seq=1, ack=2))
    d.expect(TCP(flags="A", seq=2, ack=2))
    c.close()
    listener = d.listen(80)
    d.run(d.now + 100)
    d.forget(peer_iss=d.peer_iss - 5_000_000)
    d.send(TCP(flags="S", seq=0, options=[("Timestamp", (d.peer_clock(), 0))]))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1))
    d.accept(listener)


# FIN where it is not welcome


def test_fin_to_a_listener_is_dropped(dialogue):
    d = dialogue()
    d.listen(80)
    d.send(TCP(flags="F", seq=0))
    d.silence(during=1000)


def test_fin_in_syn_sent_is_dropped(dialogue):
    """RFC 9293, 3.10.7.4, eighth: SEG.SEQ cannot be validated yet."""
    d = dialogue()
    c = d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.send(TCP(flags="F", seq=1))
    d.silence()
    assert state(c) == "SYN_SENT"


def test_duplicate_fin_in_closing_is_acked(dialogue):
    d = dialogue()
    c = d.open_passive()
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=2, ack=2))
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=2, ack=2))
    assert state(c) == "CLOSING"


def test_duplicate_fin_in_last_ack_is_acked(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=2))
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=2))
    assert state(c) == "LAST_ACK"
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=2, ack=2))
    assert state(c) == "LAST_ACK"
    d.send(TCP(flags="A", seq=2, ack=2))
    assert state(c) == "CLOSE"
    assert c.error() == 0


def test_send_after_shutdown_is_epipe(dialogue):
    d = dialogue()
    c = d.open_passive()
    shut(c)
    with pytest.raises(BrokenPipeError):
        c.send(b"x")
    d.expect(TCP(flags="FA", seq=1, ack=1))


def test_second_shutdown_sends_nothing(dialogue):
    d = dialogue()
    c = d.open_passive()
    shut(c)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    shut(c)
    d.silence(during=50)


def test_shutdown_rd_reads_eof_and_still_sends(dialogue):
    d = dialogue()
    c = d.open_passive()
    c.shutdown(socket.SHUT_RD)
    assert c.recv(10) == b""
    d.silence()
    c.send(b"x")
    d.expect(TCP(seq=1) / b"x")


def test_shutdown_before_connect_is_enotconn(dialogue):
    d = dialogue()
    with pytest.raises(OSError) as caught:
        d.stack.socket().shutdown(socket.SHUT_WR)
    assert caught.value.errno == errno.ENOTCONN
