# SPDX-License-Identifier: Apache-2.0
"""FIN in its states (RFC 9293, 3.6 and 3.10.7.4)."""

from __future__ import annotations

from scapy.layers.inet import TCP

from harp.testing.tcp_info import state_name


def test_active_close_passes_fin_wait_2(either):
    d = either()
    c = d.open_passive()
    c.shutdown(1)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="A", seq=1, ack=2))
    assert state_name(c.tcp_info()) == "FIN_WAIT2"
    d.send(TCP(flags="A", seq=1, ack=2) / b"still talking")
    assert c.recv(100) == b"still talking"
    d.ignore(d.now + 60)
    d.send(TCP(flags="FA", seq=14, ack=2))
    d.expect(TCP(flags="A", seq=2, ack=15))
    assert c.recv(100) == b""


def test_passive_close_passes_close_wait(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=2), within=60)
    assert state_name(c.tcp_info()) == "CLOSE_WAIT"
    c.send(b"last words")
    d.expect(TCP(seq=1, ack=2) / b"last words")
    d.send(TCP(flags="A", seq=2, ack=11))
    c.close()
    d.settle()
    d.expect(TCP(flags="FA", seq=11, ack=2))
    d.send(TCP(flags="A", seq=2, ack=12))
    d.silence(during=50)


def test_simultaneous_close_passes_closing(either):
    d = either()
    c = d.open_passive()
    c.shutdown(1)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="FA", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=2, ack=2))
    assert state_name(c.tcp_info()) == "CLOSING"
    d.send(TCP(flags="A", seq=2, ack=2))
    d.silence(during=50)


def test_lost_fin_is_retransmitted(either):
    d = either(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    c.shutdown(1)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.silence(during=25)
    d.expect(TCP(flags="FA", seq=1, ack=1), within=500)


def test_close_with_unread_data_sends_reset(either):
    """RFC 2525, 2.17: the peer must not believe that its data was read."""
    d = either(delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(seq=1, ack=1) / b"unread")
    d.expect(TCP(flags="A", ack=7))
    c.close()
    d.settle()
    d.expect(TCP(flags="RA", seq=1))


def test_data_after_close_gets_reset(either):
    d = either()
    c = d.open_passive()
    c.close()
    d.settle()
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="A", seq=1, ack=2) / b"nobody reads")
    got = d.expect(TCP())
    assert "R" in str(got[TCP].flags)
