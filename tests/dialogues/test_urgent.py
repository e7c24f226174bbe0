# SPDX-License-Identifier: Apache-2.0
"""Urgent bytes are bytes of the stream (RFC 6093)."""

from __future__ import annotations

import socket

from scapy.layers.inet import TCP


def test_urgent_data_stays_in_the_stream(either):
    """HARP ignores the pointer, as RFC 6093, 3.4 wishes; Linux does so where it is told to, and
    otherwise takes one byte out, as BSD did."""
    d = either()
    c = d.open_passive()
    if d.who == "linux":
        c.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    d.send(TCP(flags="PAU", seq=1, ack=1, urgptr=3) / b"abcdef")
    d.run(d.now + 60)
    got = c.recv(100)
    while len(got) < 6:
        got += c.recv(100)
    assert got == b"abcdef"
