# SPDX-License-Identifier: Apache-2.0
"""A tail loss probe is sent well before the timeout (RFC 8985, 7)."""

from __future__ import annotations

from scapy.layers.inet import TCP

from harp.testing.flights import MSS, ack, send_flight, seq


def test_tail_loss_probe_resends_last_segment(either):
    d = either(rto_min_us=3_000_000)
    c = d.open_passive(rtt=100)
    send_flight(d, c)
    d.send(ack(8), at=d.now + 100)
    d.silence(during=100)
    d.expect(TCP(seq=seq(9)), length=MSS, within=500)


def test_ack_of_tail_loss_probe_reveals_hole(either):
    d = either(rto_min_us=3_000_000)
    c = d.open_passive(rtt=100)
    send_flight(d, c)
    d.send(ack(8), at=d.now + 100)
    d.expect(TCP(seq=seq(9)), length=MSS, within=500)
    # An answer sooner than any round trip would be the original's.
    d.send(ack(8, (9, 10)), at=d.now + 2 * c.tcp_info()["rtt"] / 1000)
    d.expect(TCP(seq=seq(8)), length=MSS, within=300)
