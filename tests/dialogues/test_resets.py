# SPDX-License-Identifier: Apache-2.0
"""Which resets are believed (RFC 9293, 3.10.7.4; RFC 5961, 3.2)."""

from __future__ import annotations

import errno

from scapy.layers.inet import TCP


def test_the_exact_number(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="R", seq=1))
    assert c.error() == errno.ECONNRESET
    d.silence()


def test_another_number_in_the_window_is_challenged(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="R", seq=100))
    d.expect(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(seq=1, ack=1) / b"still here")
    assert c.recv(100) == b"still here"


def test_outside_the_window_nothing_happens(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="R", seq=1 << 20))
    d.silence()
    d.send(TCP(seq=1, ack=1) / b"still here")
    assert c.recv(100) == b"still here"
