# SPDX-License-Identifier: Apache-2.0
"""Segments of a blind attacker get only a challenge ACK (RFC 5961)."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP


def test_syn_in_established_gets_challenge_ack(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="S", seq=50))
    d.expect(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(seq=1, ack=1) / b"still here")
    assert c.recv(100) == b"still here"


def test_data_with_too_old_ack_gets_challenge_ack(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="PA", seq=1, ack=-100_000) / b"blind")
    d.expect(TCP(flags="A", seq=1, ack=1))
    with pytest.raises(BlockingIOError):
        c.recv(100)


def test_ack_of_unsent_data_is_answered_with_ack(either):
    """RFC 9293, 3.10.7.4: it is answered, which tells a peer with wrong numbers the right ones.
    Linux has learnt that late; older ones drop it in silence."""
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="PA", seq=1, ack=5000) / b"blind")
    if d.who == "harp":
        d.expect(TCP(flags="A", seq=1, ack=1))
    d.ignore()
    with pytest.raises(BlockingIOError):
        c.recv(100)
