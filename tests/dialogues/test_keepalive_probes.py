# SPDX-License-Identifier: Apache-2.0
"""An idle peer is asked whether it is there (RFC 9293, 3.8.4)."""

from __future__ import annotations

import errno
import socket

import pytest
from scapy.layers.inet import TCP


def test_keepalive_probe_follows_keepidle(either):
    d = either()
    c = d.open_passive()
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    d.silence(during=900)
    d.expect(TCP(flags="A", seq=0, ack=1), within=400)
    d.send(TCP(flags="A", seq=1, ack=1))
    d.silence(during=300)


@pytest.mark.sanitized
@pytest.mark.slow
@pytest.mark.parametrize(
    "forged",
    [
        TCP(flags="A", seq=1_000_000, ack=1),
        TCP(flags="PA", seq=-1_000_000, ack=1) / b"old",
        TCP(flags="PA", seq=1, ack=-1_000_000) / b"acknowledges nothing of ours",
        TCP(flags="S", seq=1_000_000),
        TCP(flags="R", seq=100),
    ],
    ids=["far away", "old", "wrong acknowledgement", "syn", "reset"],
)
def test_unacceptable_segment_does_not_reset_keepalive(either, forged):
    """A segment outside of the window may be anybody's: it is no sign of life."""
    d = either()
    c = d.open_passive()
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 1)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    d.strict = False
    for _ in range(6):
        d.send(forged, at=d.now + 500)
    assert c.error() == errno.ETIMEDOUT
