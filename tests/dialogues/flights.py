# SPDX-License-Identifier: Apache-2.0
"""Full segments on their way, and what the peer says of them."""

from __future__ import annotations

from scapy.layers.inet import TCP

from harp.testing.dialogue import payload

MSS = 1460


def seq(i):
    return 1 + i * MSS


def ack(n, *sacked):
    """Acknowledges the first n segments; sacked: ranges of segments [i, j)."""
    edges = tuple(seq(edge) for block in sacked for edge in block)
    options = [("NOP", None), ("NOP", None), ("SAck", edges)] if edges else []
    return TCP(flags="A", seq=1, ack=seq(n), options=options)


def flight(d, c, count=10):
    """So many full segments on their way."""
    c.send(b"x" * count * MSS)
    for i in range(count):
        d.expect(TCP(seq=seq(i)), length=MSS)


def resent(packets):
    """Numbers of the segments."""
    return [(p[TCP].seq - 1) // MSS for p in packets if payload(p)]
