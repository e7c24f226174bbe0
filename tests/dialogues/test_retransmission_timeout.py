# SPDX-License-Identifier: Apache-2.0
"""Unacknowledged data is retransmitted with exponential backoff (RFC 6298)."""

from __future__ import annotations

from scapy.layers.inet import TCP

from harp.testing.flights import MSS, ack, numbers, send_flight, seq
from harp.testing.wire import pattern


def test_rto_backs_off_exponentially(either):
    d = either(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    c.send(b"x")
    first = d.expect(TCP(seq=1) / b"x").time
    times = [p.time for p in d.drain(first + 1900)]
    # A tail probe may come first; the pauses between timeouts double.
    pauses = [b - a for a, b in zip(times, times[1:])]
    assert times[0] - first >= 200
    assert len(pauses) >= 2 and all(1.6 <= b / a <= 2.5 for a, b in zip(pauses, pauses[1:])), times


def test_rto_floor_is_added_to_srtt(either):
    """RTO = SRTT + max(floor, 4 RTTVAR): the floor counts from the round trip's end."""
    d = either(rto_min_us=200_000)
    c = d.open_passive(rtt=190)
    for i in range(12):  # until hardly any variation is left
        c.send(pattern(i * MSS, MSS))
        d.expect(TCP(seq=seq(i)), length=MSS)
        d.send(ack(i + 1), at=d.now + 190)
    c.send(pattern(12 * MSS, MSS))
    d.expect(TCP(seq=seq(12)), length=MSS)
    d.silence(during=190 + 45)
    d.send(ack(13))
    assert c.tcp_info()["rto"] >= 380_000


def test_no_rtt_sample_from_retransmission_by_karn(either):
    """RFC 6298, 3: no sample from what was sent twice."""
    d = either(rto_min_us=200_000)
    c = d.open_passive(rtt=50)
    before = c.tcp_info()["rtt"]
    c.send(b"x")
    d.expect(TCP(seq=1) / b"x")
    d.expect(TCP(seq=1) / b"x", within=1000)
    d.strict = False
    d.send(TCP(seq=1, ack=2))
    assert c.tcp_info()["rtt"] == before


def test_timeout_reduces_cwnd_to_loss_window(either):
    """RFC 5681, 3.1: the loss window."""
    d = either(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    send_flight(d, c)
    d.strict = False
    again = numbers(d.drain(d.now + 600))
    assert 0 in again and set(again) <= {0, 9}, again  # 9: the tail probe
    assert c.tcp_info()["snd_cwnd"] <= 2
