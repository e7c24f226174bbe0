# SPDX-License-Identifier: Apache-2.0
"""A segment to a closed port gets a RST (RFC 9293, 3.10.7.1)."""

from __future__ import annotations

from scapy.layers.inet import TCP


def test_syn_to_closed_port_is_reset(either):
    d = either()
    d.stack_port = 81
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="RA", ack=1))


def test_ack_to_closed_port_is_reset_with_zero_window(either):
    d = either()
    d.stack_port = 81
    d.send(TCP(flags="A", seq=5, ack=1000))
    assert d.expect(TCP(flags="R"))[TCP].window == 0


def test_reset_to_closed_port_is_not_answered(either):
    d = either()
    d.stack_port = 81
    d.send(TCP(flags="R", seq=5))
    d.silence(during=50)
