# SPDX-License-Identifier: Apache-2.0
"""Segment size is limited by the peer's MSS and the link's MTU (RFC 9293, 3.7.1)."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP


@pytest.mark.parametrize("offer", [None, 536, 1000, 1460, 8960])
def test_send_mss_follows_peer_mss_option(either, offer):
    d = either()
    c = d.open_passive(mss=offer)
    c.send(b"x" * 4000)
    d.expect(TCP(seq=1), length=min(offer or 536, 1460))


@pytest.mark.parametrize("mtu", [576, 1500, 9000])
def test_advertised_mss_follows_mtu(either, mtu):
    d = either(mtu=mtu)
    d.connect(80)
    d.expect(TCP(flags="S", seq=0, options=[("MSS", mtu - 40)]))


def test_timestamps_reduce_segment_payload(either):
    d = either(timestamps=1)
    c = d.open_passive(timestamps=True)
    c.send(b"x" * 4000)
    d.expect(TCP(seq=1), length=1448)
