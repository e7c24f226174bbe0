# SPDX-License-Identifier: Apache-2.0
"""The side that closes first enters TIME-WAIT (RFC 9293, 3.6.1; RFC 1337; RFC 6191)."""

from __future__ import annotations

from scapy.layers.inet import TCP


def closed(d):
    c = d.open_passive()
    c.shutdown(1)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="FA", seq=1, ack=2))
    d.expect(TCP(flags="A", seq=2, ack=2))
    c.close()
    d.settle()


def test_retransmitted_fin_in_time_wait_is_acked(either):
    d = either()
    closed(d)
    d.send(TCP(flags="FA", seq=1, ack=2))
    d.expect(TCP(flags="A", seq=2, ack=2))


def test_reset_in_time_wait_is_ignored(either):
    d = either()
    closed(d)
    d.send(TCP(flags="R", seq=2))
    d.silence()
    d.send(TCP(flags="FA", seq=1, ack=2))
    d.expect(TCP(flags="A", seq=2, ack=2))


def test_newer_syn_in_time_wait_opens_new_connection(either):
    d = either()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1))
    c = d.accept(listener)
    c.shutdown(1)
    d.expect(TCP(flags="FA", seq=1, ack=1))
    d.send(TCP(flags="FA", seq=1, ack=2))
    d.expect(TCP(flags="A", seq=2, ack=2))
    c.close()
    d.settle()
    d.forget(d.peer_iss + 100_000)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    d.expect(TCP(flags="SA", seq=0, ack=1))
