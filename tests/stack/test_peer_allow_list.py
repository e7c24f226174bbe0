# SPDX-License-Identifier: Apache-2.0
"""The allow list: other addresses get a RST, as from a closed port, and no state is kept."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, TCP

from harp.testing._flow import FlowStack
from harp.testing.frames import check_ipv4

OWN, PEER, OTHER = "192.0.2.1", "192.0.2.2", "198.51.100.7"
SYN, RST_ACK, RST, SYN_ACK = 0x02, 0x14, 0x04, 0x12


@pytest.fixture
def stack():
    s = FlowStack(address=OWN, prefix=24, gateway=PEER, max_connections=16, packets=64,
                  peers=[PEER])  # fmt: skip
    s.advance(10**12)
    return s


def tell(stack, source, **fields):
    """What the stack answers to a segment: flags, sequence and acknowledgement numbers."""
    segment = TCP(**{"sport": 1000, "dport": 80, "flags": "S", "seq": 7, **fields})
    stack.receive(bytes(IP(src=source, dst=OWN) / segment))
    stack.flush()
    answers = [check_ipv4(frame.data) for frame in stack.take()]
    return [(answer.flags, answer.seq, answer.ack) for answer in answers]


def test_allowed_peer_can_connect(stack):
    listener = stack.listen(80)
    ((flags, seq, ack),) = tell(stack, PEER)
    assert (flags, ack) == (SYN_ACK, 8)
    tell(stack, PEER, flags="A", seq=8, ack=seq + 1)
    assert len(listener.accepted) == 1
    assert "tcp_peer_refused" not in stack.counters()


def test_port_is_closed_to_other_peers(stack):
    """Nothing tells them from the answer that there is a listener."""
    stack.listen(80)
    for port in (80, 81):
        assert tell(stack, OTHER, dport=port) == [(RST_ACK, 0, 8)]
        assert tell(stack, OTHER, dport=port, flags="A", ack=55) == [(RST, 55, 0)]
        assert tell(stack, OTHER, dport=port, flags="R") == []
    assert stack.counters()["tcp_peer_refused"] == 2
    assert "tcp_connections" not in stack.counters()


def test_refused_peer_takes_no_memory_and_gets_no_cookie(stack):
    """A flood from outside the list costs its reading: who is on it is served as ever."""
    listener = stack.listen(80, backlog=1)
    resets = sum(len(tell(stack, OTHER, sport=port)) for port in range(1, 1501))
    assert resets == 1000  # a second, as to all unknown peers
    counters = stack.counters()
    assert counters["tcp_peer_refused"] == 1500
    assert counters["tcp_resets_limited"] == 500
    for name in ("tcp_connections", "tcp_cookies_out", "tcp_listen_drops"):
        assert name not in counters
    ((_, seq, _),) = tell(stack, PEER)
    tell(stack, PEER, flags="A", seq=8, ack=seq + 1)
    assert len(listener.accepted) == 1


def test_allow_list_does_not_apply_to_active_open(stack):
    """The allow list covers listeners only."""
    flow = stack.connect(OTHER, 9, local_port=2000)
    stack.flush()
    syn = check_ipv4(stack.take()[0].data)
    answer = {"sport": 9, "dport": 2000, "flags": "SA"}
    assert tell(stack, OTHER, ack=syn.seq + 1, **answer)[0][0] == 0x10
    assert flow.established
