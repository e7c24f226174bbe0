# SPDX-License-Identifier: Apache-2.0
"""Conditions under which a RST is accepted (RFC 9293, 3.10.7.4; RFC 5961, 3.2)."""

from __future__ import annotations

import errno

import pytest
from scapy.layers.inet import TCP


def test_reset_at_rcv_nxt_is_accepted(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="R", seq=1))
    assert c.error() == errno.ECONNRESET
    d.silence()


def test_reset_elsewhere_in_window_gets_challenge_ack(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="R", seq=100))
    d.expect(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(seq=1, ack=1) / b"still here")
    assert c.recv(100) == b"still here"


def test_reset_outside_window_is_ignored(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="R", seq=1 << 20))
    d.silence()
    d.send(TCP(seq=1, ack=1) / b"still here")
    assert c.recv(100) == b"still here"


def test_acked_data_is_readable_after_reset(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="PA", seq=1, ack=1) / b"the last words")
    d.expect(TCP(flags="A", seq=1, ack=15), within=60)
    d.send(TCP(flags="R", seq=15))
    d.silence()
    assert c.recv(4) == b"the "
    assert c.recv(100) == b"last words"
    with pytest.raises(ConnectionResetError):
        c.recv(100)
    assert c.recv(100) == b""


def test_reset_after_peer_fin_leaves_data_and_eof_readable(either):
    """All data of the peer has arrived and stays readable; only a send fails."""
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="FPA", seq=1, ack=1) / b"the last words")
    d.expect(TCP(flags="A", seq=1, ack=16), within=60)
    d.send(TCP(flags="R", seq=16))
    d.silence()
    assert c.recv(100) == b"the last words"
    assert c.recv(100) == b""
    with pytest.raises(BrokenPipeError):
        c.send(b"x")
