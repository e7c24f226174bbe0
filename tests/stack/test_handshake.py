# SPDX-License-Identifier: Apache-2.0
"""Opening a connection: RFC 9293, 3.5 and 3.10.7."""

from __future__ import annotations

import errno

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import make_stack, option
from harp.testing.tcp_info import state_name


def test_passive_open(dialogue):
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    d.expect(TCP(flags="SA", seq=0, ack=1, options=[("MSS", 1460)]))
    with pytest.raises(BlockingIOError):
        listener.accept()
    d.send(TCP(flags="A", seq=1, ack=1))
    connection, address = listener.accept()
    assert address == (d.peer_address, d.peer_port)
    assert state_name(connection.tcp_info()) == "ESTABLISHED"
    d.silence(during=5000)


def test_active_open(dialogue):
    d = dialogue()
    sock = d.connect(80)
    d.expect(TCP(flags="S", seq=0, ack=0, dport=80, options=[("MSS", 1460), ("SAckOK", b"")]))
    assert state_name(sock.tcp_info()) == "SYN_SENT"
    d.send(TCP(flags="SA", seq=0, ack=1, options=[("MSS", 1460)]))
    d.expect(TCP(flags="A", seq=1, ack=1))
    assert state_name(sock.tcp_info()) == "ESTABLISHED"
    assert sock.error() == 0
    d.silence(during=5000)


def test_data_with_handshake_ack_is_delivered(dialogue):
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="PA", seq=1, ack=1) / b"hello")
    connection = d.accept(listener)
    assert connection.recv(100) == b"hello"
    d.expect(TCP(flags="A", seq=1, ack=6), within=500)


def test_fin_with_handshake_ack_enters_close_wait(dialogue):
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="FA", seq=1, ack=1) / b"bye")
    connection = d.accept(listener)
    assert connection.recv(100) == b"bye"
    assert connection.recv(100) == b""
    d.expect(TCP(flags="A", seq=1, ack=5))
    assert state_name(connection.tcp_info()) == "CLOSE_WAIT"


def test_syn_retransmissions_back_off_exponentially(dialogue):
    """RFC 6298, 2.1 and 5.5: one second, then twice as long each time."""
    d = dialogue(rto_initial_us=1_000_000)
    d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.expect(TCP(flags="S", seq=0), at=1000)
    d.expect(TCP(flags="S", seq=0), at=3000)
    d.expect(TCP(flags="S", seq=0), at=7000)
    d.expect(TCP(flags="S", seq=0), at=15000)
    d.send(TCP(flags="SA", seq=0, ack=1, options=[("MSS", 1460)]))
    d.expect(TCP(flags="A", seq=1, ack=1))
    d.silence(during=5000)


def test_unanswered_connect_gives_etimedout(dialogue):
    d = dialogue()
    sock = d.connect(80)
    d.ignore(until=1_000_000)
    assert sock.error() == errno.ETIMEDOUT
    d.silence(during=1_000_000)


def test_syn_ack_is_retransmitted(dialogue):
    d = dialogue(rto_initial_us=1_000_000)
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.expect(TCP(flags="SA", seq=0, ack=1), at=1000)
    d.expect(TCP(flags="SA", seq=0, ack=1), at=3000)
    d.send(TCP(flags="A", seq=1, ack=1))
    d.accept(listener)
    d.silence(during=20_000)


@pytest.mark.parametrize("passive", [False, True])
def test_lost_syn_makes_first_rto_three_seconds(dialogue, passive):
    """RFC 6298, 5.7: the retransmitted SYN gives no sample, and one second was too short."""
    d = dialogue(rto_initial_us=1_000_000)
    if passive:
        listener = d.listen(80)
        d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
        d.expect(TCP(flags="SA", seq=0, ack=1))
        d.expect(TCP(flags="SA", seq=0, ack=1), at=1000)
        d.send(TCP(flags="A", seq=1, ack=1), at=1500)
        c = d.accept(listener)
    else:
        c = d.connect(80)
        d.expect(TCP(flags="S", seq=0))
        d.expect(TCP(flags="S", seq=0), at=1000)
        d.send(TCP(flags="SA", seq=0, ack=1, options=[("MSS", 1460)]), at=1500)
        d.expect(TCP(flags="A", seq=1, ack=1))
    c.send(b"data")
    d.expect(TCP(flags="PA", seq=1, ack=1) / b"data")
    d.silence(during=2900)
    d.expect(TCP(flags="PA", seq=1, ack=1) / b"data", within=200)


def test_duplicate_syn_gets_same_syn_ack(dialogue):
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0))
    first = d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="S", seq=0), at=300)
    again = d.expect(TCP(flags="SA", seq=0, ack=1))
    assert option(again, "MSS") == option(first, "MSS")
    d.send(TCP(flags="A", seq=1, ack=1))
    d.accept(listener)


def test_unfinished_handshake_times_out(dialogue):
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0))
    d.ignore(until=1_000_000)
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert d.stack.next_deadline() is None


def test_unacceptable_ack_in_syn_sent_is_reset(dialogue):
    """RFC 9293, 3.10.7.3, first: half of an old connection is told off; ours goes on."""
    d = dialogue()
    d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.send(TCP(flags="A", seq=700, ack=77))
    d.expect(TCP(flags="R", seq=77))
    d.send(TCP(flags="SA", seq=0, ack=0))
    d.expect(TCP(flags="R", seq=0))
    d.send(TCP(flags="SA", seq=0, ack=2))
    d.expect(TCP(flags="R", seq=2))
    d.forget()
    d.send(TCP(flags="R", seq=0))
    d.silence()
    d.expect(TCP(flags="S"), at=1000)


def test_reset_not_acking_syn_is_ignored_in_syn_sent(dialogue):
    d = dialogue()
    sock = d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.send(TCP(flags="R", seq=0))
    d.send(TCP(flags="RA", seq=0, ack=77))
    d.send(TCP(flags="RA", seq=0, ack=0))
    d.silence()
    assert state_name(sock.tcp_info()) == "SYN_SENT"
    d.send(TCP(flags="SA", seq=0, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=1))


def test_segment_without_syn_is_ignored_in_syn_sent(dialogue):
    """RFC 9293, 3.10.7.3, fifth: neither SYN nor RST, drop."""
    d = dialogue()
    sock = d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.send(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1) / b"data")
    d.send(TCP(flags="F", seq=1))
    d.silence()
    assert state_name(sock.tcp_info()) == "SYN_SENT"


def test_reset_of_syn_gives_econnrefused(dialogue):
    d = dialogue()
    sock = d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.send(TCP(flags="RA", seq=0, ack=1))
    assert sock.error() == errno.ECONNREFUSED
    d.silence(during=100_000)


def test_simultaneous_open(dialogue):
    """RFC 9293, 3.5, figure 8: SYNs cross, and each side answers with SYN-ACK."""
    d = dialogue()
    sock = d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1000)]))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    assert state_name(sock.tcp_info()) == "SYN_RECV"
    d.send(TCP(flags="SA", seq=0, ack=1), at=d.now + 30)
    d.expect(TCP(flags="A", seq=1, ack=1))
    info = sock.tcp_info()
    assert state_name(info) == "ESTABLISHED"
    assert (info["snd_cwnd"], info["rtt"]) == (10, 30_000)  # no SYN of this was lost
    sock.send(b"x" * 1001)
    d.settle()
    d.expect(TCP(seq=1, ack=1), length=1000)


def test_simultaneous_open_when_peer_acks_syn_ack(dialogue):
    """It opens by the answer that it gets in turn, and sends a bare acknowledgement itself."""
    d = dialogue()
    sock = d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1000)]))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1))
    assert state_name(sock.tcp_info()) == "ESTABLISHED"
    d.send(TCP(flags="SA", seq=0, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=1))


def test_simultaneous_open_between_two_stacks(wire):
    a = make_stack(address="192.0.2.1")
    b = make_stack(address="192.0.2.2", seed=(5, 6))
    w = wire(a, b, delay_ns=10_000_000)
    one, other = a.socket(), b.socket()
    one.bind(("192.0.2.1", 1001))
    other.bind(("192.0.2.2", 1002))
    assert one.connect_ex(("192.0.2.2", 1002)) == errno.EINPROGRESS
    assert other.connect_ex(("192.0.2.1", 1001)) == errno.EINPROGRESS
    w.run(
        until=lambda: {state_name(s.tcp_info()) for s in (one, other)} == {"ESTABLISHED"},
        limit_s=10,
    )
    one.send(b"ping")
    w.run(until=lambda: bool(other.poll() & 1), limit_s=1)
    assert other.recv(10) == b"ping"


def test_unacceptable_ack_in_syn_received_is_reset(dialogue):
    """RFC 9293, 3.10.7.4, fifth: SYN-RECEIVED and an unacceptable ACK."""
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=2))
    d.expect(TCP(flags="R", seq=2))
    d.send(TCP(flags="A", seq=1, ack=0))
    d.expect(TCP(flags="R", seq=0))
    d.send(TCP(flags="A", seq=1, ack=1))
    d.accept(listener)


def test_reset_in_syn_received_returns_to_listen(dialogue):
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="R", seq=1))
    d.silence(during=20_000)
    with pytest.raises(BlockingIOError):
        listener.accept()
    d.forget(peer_iss=0x20000000)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1))
    d.accept(listener)


def test_data_on_a_syn_is_not_lost(dialogue):
    """RFC 9293, 3.4: data on a SYN may wait for the handshake, or be sent again; never half."""
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0) / b"early")
    answer = d.expect(TCP(flags="SA", seq=0))
    taken = answer[TCP].ack - 1
    assert 0 <= taken <= 5
    d.send(TCP(flags="A", seq=1 + taken, ack=1) / b"early data"[taken:])
    connection = d.accept(listener)
    assert connection.recv(100) == b"early data"


def test_two_connections_of_one_listener(dialogue):
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(sport=5001, flags="S", seq=0))
    d.expect(TCP(dport=5001, flags="SA", seq=0, ack=1))
    d.send(TCP(sport=5002, flags="S", seq=0))
    d.expect(TCP(dport=5002, flags="SA", seq=0, ack=1))
    d.send(TCP(sport=5002, flags="A", seq=1, ack=1) / b"two")
    d.send(TCP(sport=5001, flags="A", seq=1, ack=1) / b"one")
    arrived = [listener.accept() for _ in range(2)]
    data = {address[1]: connection.recv(10) for connection, address in arrived}
    assert data == {5001: b"one", 5002: b"two"}
