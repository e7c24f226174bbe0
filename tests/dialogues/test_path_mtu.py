# SPDX-License-Identifier: Apache-2.0
"""ICMP fragmentation-needed messages reduce the MSS, within bounds (RFC 1191)."""

from __future__ import annotations

from scapy.layers.inet import ICMP, IP, TCP


def too_big(d, mtu, seq):
    flow = d.flow()
    quoted = IP(src=d.stack_address, dst=d.peer_address, len=1500, flags="DF") / TCP(
        sport=d.stack_port, dport=d.peer_port, seq=(flow.irs + seq) % 2**32, flags="A")  # fmt: skip
    message = ICMP(type=3, code=4, nexthopmtu=mtu) / bytes(quoted)[:28]
    d.send(IP(src="192.0.2.9", dst=d.stack_address) / message)


def test_too_big_message_resends_in_smaller_segments(either):
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=200)
    c.send(b"x" * 2920)
    d.expect(TCP(seq=1), length=1460)
    d.expect(TCP(seq=1461), length=1460)
    d.strict = False
    too_big(d, 1000, 1)
    d.expect(TCP(seq=1), length=960)


def test_second_too_big_message_resends_at_once(either):
    """RFC 1191, 6.5: a later hop is narrower still."""
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=200)
    d.strict = False
    c.send(b"x" * 1460)
    d.expect(TCP(seq=1), length=1460)
    too_big(d, 1200, 1)
    d.expect(TCP(seq=1), length=1160)
    d.ignore(d.now + 10)
    too_big(d, 1000, 1)
    d.expect(TCP(seq=1), length=960, within=50)


def test_too_big_message_for_data_not_in_flight_is_ignored(either):
    """RFC 5927, 7.2."""
    d = either(rto_min_us=1_000_000)
    c = d.open_passive(rtt=200)
    c.send(b"x" * 1460)
    d.expect(TCP(seq=1), length=1460)
    too_big(d, 1000, 500_000)
    d.send(TCP(flags="A", seq=1, ack=1461))
    c.send(b"x" * 1460)
    d.expect(TCP(seq=1461), length=1460)
