# SPDX-License-Identifier: Apache-2.0
"""A connection is opened from either side (RFC 9293, 3.5)."""

from __future__ import annotations

import errno

import pytest
from scapy.layers.inet import TCP

from harp.testing.tcp_info import state_name


def test_passive_open_negotiates_mss(either):
    d = either()
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    d.expect(TCP(flags="SA", seq=0, ack=1, options=[("MSS", 1460)]))
    d.send(TCP(flags="A", seq=1, ack=1))
    c = d.accept(listener)
    d.send(TCP(seq=1, ack=1) / b"hello")
    assert c.recv(100) == b"hello"


def test_active_open_completes_handshake(either):
    d = either()
    d.connect(80)
    d.expect(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    d.send(TCP(flags="SA", seq=0, ack=1, options=[("MSS", 1460)]))
    d.expect(TCP(flags="A", seq=1, ack=1))
    d.silence()


def test_simultaneous_open_reaches_established(either):
    """RFC 9293, 3.5: the SYNs cross, and so do their answers."""
    d = either()
    c = d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="SA", seq=0, ack=1, options=[("MSS", 1460)]))
    d.expect(TCP(flags="A", seq=1, ack=1))  # opens a peer that does not take a SYN-ACK, either
    d.silence()
    assert state_name(c.tcp_info()) == "ESTABLISHED"
    d.send(TCP(seq=1, ack=1) / b"x")
    d.expect(TCP(flags="A", seq=1, ack=2), within=60)


@pytest.mark.parametrize("wrong", [{"ack": 2}, {"seq": 1}, {"flags": "SAF"}], ids=str)
def test_invalid_syn_ack_does_not_end_simultaneous_open(either, wrong):
    """It acknowledges the SYN, repeats the peer's, and is nothing else; or it opens nothing."""
    d = either()
    c = d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(**{"flags": "SA", "seq": 0, "ack": 1, "options": [("MSS", 1460)], **wrong}))
    d.ignore(d.now + 20)
    assert state_name(c.tcp_info()) == "SYN_RECV"


def test_lost_syn_is_retransmitted_after_one_second(either):
    """RFC 6298, 2.1: after a second."""
    d = either()
    d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.silence(during=900)
    d.expect(TCP(flags="S", seq=0), within=300)


def test_reset_of_syn_gives_econnrefused(either):
    d = either()
    c = d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.send(TCP(flags="RA", seq=0, ack=1))
    assert c.error() == errno.ECONNREFUSED


def test_unacceptable_ack_in_syn_sent_is_reset(either):
    """RFC 9293, 3.10.7.3: it is an old connection's."""
    d = either()
    d.connect(80)
    d.expect(TCP(flags="S", seq=0))
    d.send(TCP(flags="A", seq=9, ack=77))
    d.expect(TCP(flags="R", seq=77))
