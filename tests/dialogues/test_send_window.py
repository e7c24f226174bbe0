# SPDX-License-Identifier: Apache-2.0
"""A zero window stops data and gets window probes (RFC 9293, 3.8.6.1)."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP

from harp.testing.flights import MSS, send_flight, seq


def test_zero_window_is_probed(either):
    """HARP probes with the next byte, so that a window that has opened by one is used at once;
    Linux repeats the last number that was acknowledged, without a byte."""
    d = either(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    c.send(b"first")
    d.expect(TCP(seq=1) / b"first")
    d.send(TCP(seq=1, ack=6, window=0))
    c.send(b"second")
    d.silence(during=150)
    if d.who == "harp":
        d.expect(TCP(seq=6) / b"s", within=400)
    else:
        d.expect(TCP(flags="A", seq=5), within=400)
    d.send(TCP(seq=1, ack=6, window=0))
    d.silence(during=200)


def test_an_opened_window_is_used_at_once(either):
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=20)
    c.send(b"first")
    d.expect(TCP(seq=1) / b"first")
    d.send(TCP(seq=1, ack=6, window=0))
    c.send(b"second")
    d.silence(during=50)
    d.send(TCP(seq=1, ack=6, window=1000))
    d.expect(TCP(seq=6) / b"second")


def test_old_segment_does_not_update_window(either):
    """RFC 9293, 3.10.7.4: SND.WL1 and SND.WL2."""
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="A", seq=1, ack=1, window=0) / b"ab")
    d.ignore(d.now + 60)
    d.send(TCP(flags="A", seq=1, ack=1, window=5000) / b"a")
    d.ignore(d.now + 60)
    c.send(b"data")
    d.silence(during=100)


@pytest.mark.parametrize("advances", [True, False])
def test_no_tail_loss_probe_into_zero_window(either, advances):
    """RFC 8985, 7.3 wants room for a probe; what a closed window gets, the timeout sends."""
    d = either(rto_min_us=1_500_000)
    c = d.open_passive(rtt=200)
    send_flight(d, c)
    first = 8 if advances else 0
    d.send(TCP(flags="A", seq=1, ack=seq(first), window=0), at=d.now + 50)
    d.silence(during=900)
    d.expect(TCP(seq=seq(first)), length=MSS, within=1500)
