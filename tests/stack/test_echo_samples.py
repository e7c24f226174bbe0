# SPDX-License-Identifier: Apache-2.0
"""Samples of the round trip from the acknowledgements of retransmitted data: the echoed timestamp
tells which transmission has arrived."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP

from harp.testing.flights import MSS, ack, seq, stamped
from harp.testing.wire import pattern


@pytest.mark.parametrize("timestamps", [False, True])
def test_rto_adapts_to_longer_rtt(dialogue, timestamps):
    """The acknowledgements of originals come after their copies were sent, each time."""
    d = dialogue(rto_min_us=200_000, timestamps=int(timestamps))
    c = d.open_passive(rtt=20, timestamps=timestamps)
    mss = MSS - 12 * timestamps
    copies = []
    for i in range(6):
        c.send(pattern(i * mss, mss))
        original = d.expect(TCP(seq=seq(i, mss)), length=mss)
        copies.append(len(d.drain(until=d.now + 300)))
        answer = stamped(original, d, i + 1, mss=mss) if timestamps else ack(i + 1, mss=mss)
        d.send(answer)
        if copies[-1]:
            d.send(ack(i + 1, (i, i + 1), mss=mss))
    assert copies[0] == 1 and copies[2:] == [0] * 4, copies


def test_outage_leaves_short_backoff(dialogue):
    """Without timestamps, no acknowledgement after an outage is a sample. The next loss must not
    wait for as long as the outage."""
    d = dialogue(rto_min_us=200_000, timestamps=0)
    c = d.open_passive(rtt=50)
    c.send(pattern(0, MSS))
    d.expect(TCP(seq=1), length=MSS)
    d.ignore(until=d.now + 30_000)
    d.send(ack(1))
    c.send(pattern(MSS, MSS))
    d.expect(TCP(seq=seq(1)), length=MSS)
    assert d.drain(until=d.now + 8 * 300), "it is lost, and sent again"


def test_echo_of_paused_peer_hardly_raises_rto(dialogue):
    """The RTO of seconds would delay the repair of what the peer has dropped meanwhile."""
    d = dialogue(rto_min_us=200_000, timestamps=1)
    c = d.open_passive(rtt=20, timestamps=True)
    mss = MSS - 12
    c.send(pattern(0, mss))
    original = d.expect(TCP(seq=1), length=mss)
    d.ignore(until=d.now + 20_000)
    d.send(stamped(original, d, 1, mss=mss))
    assert c.tcp_info()["rto"] <= 400_000
