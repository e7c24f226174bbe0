# SPDX-License-Identifier: Apache-2.0
"""Data beyond the receive window is not accepted (RFC 9293, 3.10.7.4)."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP


def test_segment_beyond_window_is_acked_and_dropped(either):
    d = either(delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(seq=1_000_000, ack=1) / b"far away")
    d.expect(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(seq=1, ack=1) / b"near")
    d.expect(TCP(flags="A", seq=1, ack=5))
    assert c.recv(100) == b"near"


@pytest.mark.parametrize("beyond", [0, 1])
def test_ack_at_right_edge_of_full_window_is_processed(either, beyond):
    """A byte is lost and the window is filled, so the peer's segments stand at its right edge. They
    acknowledge, and are not answered. A segment beyond the edge is answered, and acknowledges
    nothing."""
    d = either(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    c.send(b"x" * 100)
    sent = d.expect(TCP(seq=1) / (b"x" * 100))
    edge = sent[TCP].ack + sent[TCP].window
    d.send(TCP(flags="A", seq=edge - 100, ack=1) / (b"y" * 100))
    answer = d.expect(TCP(flags="A", seq=101, ack=1))[TCP]
    edge = max(edge, answer.ack + answer.window)
    d.send(TCP(flags="A", seq=edge + beyond, ack=101))
    if beyond:
        d.expect(TCP(flags="A", seq=101, ack=1))
        d.expect(TCP(seq=1) / (b"x" * 100), within=500)
    else:
        d.silence(during=500)


def test_a_segment_without_ack_is_dropped(either):
    d = either()
    c = d.open_passive()
    d.send(TCP(flags="P", seq=1) / b"nothing")
    d.silence(during=60)
    with pytest.raises(BlockingIOError):
        c.recv(100)


def test_unread_data_closes_receive_window(either):
    d = either(rcvbuf=4096, delayed_ack_us=0)
    c = d.open_passive()
    d.strict = False
    sent, window = 0, 1
    while window and sent < 40_000:
        d.send(TCP(flags="A", seq=1 + sent, ack=1) / (b"x" * 500))
        answer = d.expect(TCP(flags="A"))[TCP]
        sent, window = answer.ack - 1, answer.window
        if window < 500:
            break
    assert 1500 <= sent <= 16_000
    assert len(c.recv(65536)) == sent


@pytest.mark.parametrize(
    "config", [{"rcvbuf": 1_000_000}, {"rcvbuf": 1_000_000, "window_scale": 0}], ids=str
)
def test_reading_sends_no_duplicate_ack(either, config):
    """Where the buffer is larger than the window field can say, reading changes nothing that the
    peer sees; without SACK the third of such duplicates would make it retransmit (RFC 5681, 2)."""
    d = either(delayed_ack_us=0, **config)
    c = d.open_passive(sack=False, wscale=7 if "window_scale" in config else None)
    d.strict = False
    said = []
    for i in range(20):
        d.send(TCP(seq=1 + 1460 * i, ack=1) / (b"x" * 1460))
        if i % 4 == 3:
            assert len(c.recv(4000)) == 4000
        said += [(p[TCP].ack, p[TCP].window) for p in d.drain()]
    assert said[-1][0] == 1 + 20 * 1460
    assert len(set(said)) == len(said)
