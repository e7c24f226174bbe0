# SPDX-License-Identifier: Apache-2.0
"""ICMP: echo, and what an error message may do to a connection (RFC 792, 1122, 1191, 5927)."""

from __future__ import annotations

import errno

import pytest
from scapy.layers.inet import ICMP, IP, TCP, IPOption
from scapy.packet import Raw

from harp.testing.dialogue import PEER_ADDRESS, STACK_ADDRESS, payload
from harp.testing.tcp_info import state_name
from harp.testing.wire import pattern

MSS = 1460


@pytest.mark.parametrize("size", [0, 1, 56, 1472])
def test_echo_request_is_answered(dialogue, size):
    d = dialogue()
    d.send(ICMP(type=8, id=7, seq=9) / pattern(0, size))
    answer = d.expect(IP(src=STACK_ADDRESS, dst=PEER_ADDRESS) / ICMP(type=0, code=0, id=7, seq=9))
    assert bytes(answer[ICMP].payload) == pattern(0, size)


def test_wrong_icmp_checksum_is_dropped(dialogue):
    d = dialogue()
    d.send(ICMP(type=8, id=7, seq=9, chksum=0x1234) / b"data")
    d.silence(during=1000)


def test_echo_replies_are_rate_limited(dialogue):
    """RFC 1812, 4.3.2.8: a flood is not answered by another, and afterwards service goes on."""
    d = dialogue()
    d.strict = False
    asked = d.build(ICMP(type=8, id=7, seq=9) / b"data")
    for _ in range(1200):
        d.stack.input(asked)
    assert len(d.drain()) == 1000
    d.send(asked, at=d.now + 1001)
    assert len(d.drain()) == 1


def test_echo_reply_is_not_answered(dialogue):
    d = dialogue()
    d.send(ICMP(type=0, id=7, seq=9) / b"data")
    d.silence(during=1000)


@pytest.mark.parametrize("kind", [3, 4, 5, 9, 10, 11, 12, 13, 15, 17, 18, 255])
def test_other_messages_are_not_answered(dialogue, kind):
    d = dialogue()
    d.send(IP(src=PEER_ADDRESS, dst=STACK_ADDRESS) / ICMP(type=kind) / (b"\0" * 40))
    d.silence(during=1000)


@pytest.mark.parametrize("target", ["192.0.2.255", "255.255.255.255", "224.0.0.1", "192.0.2.9"])
def test_broadcast_or_multicast_echo_is_not_answered(dialogue, target):
    """RFC 1122, 3.2.2.6: may be ignored, and then cannot amplify."""
    d = dialogue()
    d.send(IP(src=PEER_ADDRESS, dst=target) / ICMP(type=8) / b"data")
    d.silence(during=1000)


@pytest.mark.parametrize("source", ["192.0.2.255", "255.255.255.255", "224.0.0.1", "0.0.0.0"])
def test_echo_from_non_unicast_source_is_not_answered(dialogue, source):
    d = dialogue()
    d.send(IP(src=source, dst=STACK_ADDRESS) / ICMP(type=8) / b"data")
    d.silence(during=1000)


def test_echo_with_ip_options_is_survived(dialogue):
    d = dialogue()
    options = [IPOption(b"\x94\x04\x00\x00")]  # router alert
    d.send(IP(src=PEER_ADDRESS, dst=STACK_ADDRESS, options=options) / ICMP(type=8) / b"data")
    for packet in d.drain(until=d.now + 100):
        assert packet[ICMP].type == 0
        assert bytes(packet[ICMP].payload) == b"data"


def test_truncated_icmp_is_survived(dialogue):
    d = dialogue()
    d.strict = False
    whole = bytes(ICMP(type=3, code=4, nexthopmtu=1000) / quote(d, 0))
    for length in range(len(whole)):
        d.send(IP(src=PEER_ADDRESS, dst=STACK_ADDRESS, proto=1) / Raw(whole[:length]))
    d.silence(during=1000)


# Error messages


def quote(d, seq, sport=None, peer=PEER_ADDRESS):
    """The start of a segment that the stack sent, as a router quotes it; seq relative."""
    flow = d.flows.get((d.peer_port, d.stack_port or 0))
    base = flow.irs if flow and flow.irs else 0
    tcp = TCP(
        sport=sport or d.stack_port or 1, dport=d.peer_port, seq=(base + seq) % 2**32, flags="A"
    )
    return Raw(bytes(IP(src=STACK_ADDRESS, dst=peer, len=1500) / tcp)[:28])


def unreachable(d, code, seq, router="198.51.100.1", mtu=0, **kind):
    return (
        IP(src=router, dst=STACK_ADDRESS)
        / ICMP(type=3, code=code, nexthopmtu=mtu)
        / quote(d, seq, **kind)
    )


@pytest.mark.parametrize("code", [2, 3])
def test_hard_icmp_error_ends_syn_sent(dialogue, code):
    """RFC 1122, 4.2.3.9: protocol or port unreachable."""
    d = dialogue()
    sock = d.connect(80)
    d.expect(TCP(flags="S"))
    d.send(unreachable(d, code, 0))
    assert sock.error() in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENOPROTOOPT)


@pytest.mark.parametrize("code", [0, 1, 5])
def test_soft_icmp_error_does_not_end_syn_sent(dialogue, code):
    """RFC 1122, 4.2.3.9: net or host unreachable may pass; the SYN goes out again."""
    d = dialogue()
    sock = d.connect(80)
    d.expect(TCP(flags="S"))
    d.send(unreachable(d, code, 0))
    assert state_name(sock.tcp_info()) == "SYN_SENT"
    d.expect(TCP(flags="S"), at=1000)
    d.send(TCP(flags="SA", seq=0, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=1))


@pytest.mark.parametrize("code", [0, 1, 2, 3, 5, 13])
def test_icmp_errors_do_not_end_established_connection(dialogue, code):
    """RFC 5927, 4: an attacker who guesses a sequence number must not end it."""
    d = dialogue()
    c = d.open_passive(rtt=20)
    c.send(b"x" * MSS)
    d.expect(TCP(seq=1), length=MSS)
    d.send(unreachable(d, code, 1))
    d.silence()
    d.send(TCP(flags="A", seq=1, ack=1 + MSS))
    c.send(b"y")
    d.expect(TCP(seq=1 + MSS) / b"y")


def test_icmp_error_for_sequence_not_in_flight_is_ignored(dialogue):
    """RFC 5927, 4.1: only for what is in flight."""
    d = dialogue()
    sock = d.connect(80)
    d.expect(TCP(flags="S"))
    for seq in (-1, 5, 100_000, 1 << 31):
        d.send(unreachable(d, 3, seq))
    assert state_name(sock.tcp_info()) == "SYN_SENT"


def test_icmp_error_for_other_connection_is_ignored(dialogue):
    d = dialogue()
    sock = d.connect(80)
    d.expect(TCP(flags="S"))
    d.send(unreachable(d, 3, 0, sport=(d.stack_port or 0) ^ 1))
    d.send(unreachable(d, 3, 0, peer="192.0.2.77"))
    assert state_name(sock.tcp_info()) == "SYN_SENT"


def in_flight(d):
    c = d.open_passive(rtt=20)
    c.send(pattern(0, 4 * MSS))
    for i in range(4):
        d.expect(TCP(seq=1 + i * MSS), length=MSS)
    return c


def test_too_big_message_lowers_segment_size(dialogue):
    """RFC 1191: what did not fit goes out again, smaller, and so does what follows."""
    d = dialogue(rto_min_us=200_000)
    in_flight(d)
    d.send(unreachable(d, 4, 1, mtu=1000))
    again = [p for p in d.drain(until=d.now + 3000) if payload(p)]
    assert again
    assert all(len(p[IP]) <= 1000 for p in again)
    assert again[0][TCP].seq == 1
    assert payload(again[0]) == pattern(0, len(payload(again[0])))


def test_stream_is_complete_after_too_big_message(dialogue):
    from harp.testing.dialogue import Sink

    d = dialogue(rto_min_us=200_000)
    in_flight(d)
    d.send(unreachable(d, 4, 1, mtu=1000))
    d.strict = False
    sink = Sink()
    for _ in range(100):
        if sink.take(d.drain(until=d.now + 50)):
            d.send(TCP(flags="A", seq=1, ack=sink.ack))
        if len(sink.data) == 4 * MSS:
            break
    assert sink.data == pattern(0, 4 * MSS)


@pytest.mark.parametrize("seq", [0, -1, 1 + 4 * MSS, 1 << 30])
def test_too_big_message_for_data_not_in_flight_is_ignored(dialogue, seq):
    d = dialogue()
    c = in_flight(d)
    d.send(unreachable(d, 4, seq, mtu=600))
    d.send(TCP(flags="A", seq=1, ack=1 + 4 * MSS))
    c.send(b"y" * MSS)
    d.expect(TCP(seq=1 + 4 * MSS), length=MSS)


@pytest.mark.parametrize("mtu", [0, 1, 67, 68, 100])
def test_too_big_message_has_minimum_mtu(dialogue, mtu):
    """RFC 1191, 3 and 7.2: no next-hop MTU is below 68; nobody may drive us to tiny segments."""
    d = dialogue(rto_min_us=200_000)
    c = in_flight(d)
    d.send(unreachable(d, 4, 1, mtu=mtu))
    d.ignore()
    d.strict = False
    d.send(TCP(flags="A", seq=1, ack=1 + 4 * MSS))
    d.ignore()
    c.send(b"y" * 4000)
    out = [p for p in d.drain() if payload(p)]
    assert len(payload(out[0])) >= 200


@pytest.mark.parametrize("mtu", [1040, 1041, 1400, 1500, 9000, 65535])
def test_too_big_message_never_raises_segment_size(dialogue, mtu):
    """Neither above what the peer takes, nor is anything sent again for such a message."""
    d = dialogue()
    c = d.open_passive(rtt=20, mss=1000)
    c.send(pattern(0, 4000))
    for i in range(4):
        d.expect(TCP(seq=1 + i * 1000), length=1000)
    d.send(unreachable(d, 4, 1, mtu=mtu))
    d.silence()
    d.send(TCP(flags="A", seq=1, ack=4001))
    c.send(b"y" * 2000)
    assert [len(payload(p)) for p in d.drain()] == [1000, 1000]
