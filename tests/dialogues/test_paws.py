# SPDX-License-Identifier: Apache-2.0
"""Old timestamps are old segments (RFC 7323, 5)."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import option
from harp.testing.flights import timestamp_option


def test_paws_drops_old_segment(either):
    d = either(timestamps=1)
    c = d.open_passive(timestamps=True)
    d.send(TCP(seq=1, ack=1) / b"now")
    d.ignore(d.now + 60)
    assert c.recv(100) == b"now"
    d.send(TCP(seq=4, ack=1, options=timestamp_option(d.peer_clock() - 100_000)) / b"old")
    d.expect(TCP(flags="A", seq=1, ack=4))
    with pytest.raises(BlockingIOError):
        c.recv(100)
    d.send(TCP(seq=4, ack=1) / b"new")
    assert c.recv(100) == b"new"


def test_dsack_reports_original_after_its_retransmission(either):
    """RFC 2883, 4: PAWS rejects the original; a DSACK reports the spurious copy."""
    d = either(timestamps=1, delayed_ack_us=0)
    d.open_passive(timestamps=True)
    d.send(TCP(seq=1, ack=1, options=timestamp_option(d.peer_clock() + 10)) / (b"a" * 100))
    d.expect(TCP(flags="A", ack=101))
    d.send(TCP(seq=1, ack=1, options=timestamp_option(d.peer_clock() - 10)) / (b"a" * 100))
    assert option(d.expect(TCP(flags="A", ack=101)), "SAck") == (1, 101)


def test_tsecr_echoes_peer_tsval(either):
    d = either(timestamps=1, delayed_ack_us=0)
    d.open_passive(timestamps=True)
    d.send(TCP(seq=1, ack=1, options=timestamp_option(d.peer_clock() + 500)) / b"x")
    sent = d.peer_clock()
    answer = d.expect(TCP(flags="A", seq=1, ack=2))
    assert 0 <= option(answer, "Timestamp")[1] - sent <= 500
