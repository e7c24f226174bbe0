# SPDX-License-Identifier: Apache-2.0
"""An idle peer is asked whether it is there (RFC 9293, 3.8.4)."""

from __future__ import annotations

import socket

from scapy.layers.inet import TCP


def test_after_a_second(either):
    d = either()
    c = d.open_passive()
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    d.silence(during=900)
    d.expect(TCP(flags="A", seq=0, ack=1), within=400)
    d.send(TCP(flags="A", seq=1, ack=1))
    d.silence(during=300)
