# SPDX-License-Identifier: Apache-2.0
"""Neighbours: ARP (RFC 826), its queues, and address conflicts (RFC 5227)."""

from __future__ import annotations

import errno
import socket
from functools import cache

import pytest
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.l2 import ARP, Ether

from harp.testing.dialogue import _EPOCH_NS, PEER_ADDRESS, PEER_MAC, STACK_ADDRESS, STACK_MAC

BROADCAST = "ff:ff:ff:ff:ff:ff"
OTHER_MAC = "02:00:5e:00:00:99"


@pytest.fixture
def ethernet(dialogue):
    def make(**config):
        config.setdefault("on_arp", False)
        return dialogue(link=1, **config)

    return make


def reply(mac=PEER_MAC, address=PEER_ADDRESS):
    return ARP(op=2, hwsrc=mac, psrc=address, hwdst=STACK_MAC, pdst=STACK_ADDRESS)


REQUEST = ARP(op=1, hwsrc=STACK_MAC, psrc=STACK_ADDRESS, pdst=PEER_ADDRESS)


def test_unresolved_neighbour_gets_arp_request(ethernet):
    d = ethernet()
    d.connect(80)
    asked = d.expect(REQUEST)
    assert asked.dst == BROADCAST
    assert asked.src == STACK_MAC
    d.send(reply())
    syn = d.expect(TCP(flags="S", seq=0))
    assert syn.dst == PEER_MAC
    assert syn.src == STACK_MAC


def test_reachable_neighbour_gets_no_second_arp_request(ethernet):
    d = ethernet()
    d.connect(80)
    d.expect(REQUEST)
    d.send(reply())
    d.expect(TCP(flags="S", dport=80))
    d.connect(81)
    d.expect(TCP(flags="S", dport=81))


def test_arp_request_is_repeated_once_per_second(ethernet):
    """RFC 1122, 2.3.2.1: no more than one request a second for a host."""
    d = ethernet()
    d.connect(80)
    d.expect(REQUEST)
    d.silence(during=900)
    d.expect(REQUEST, within=2000)
    d.silence(during=900)
    d.expect(REQUEST, within=2000)


def test_unanswered_arp_gives_ehostunreach(ethernet):
    d = ethernet()
    sock = d.connect(80)
    d.ignore(until=10_000)  # a SYN would be repeated for two minutes
    assert sock.error() == errno.EHOSTUNREACH


def test_late_arp_reply_is_accepted(ethernet):
    d = ethernet()
    d.connect(80)
    d.expect(REQUEST)
    d.expect(REQUEST, within=2000)
    d.send(reply())
    assert TCP in d.drain(until=d.now + 4000)[0]


def test_packets_queued_for_arp_are_bounded(ethernet):
    d = ethernet(max_connections=256)
    for port in range(1, 201):
        d.stack.socket().connect_ex((PEER_ADDRESS, port))
    requests = d.drain()
    assert 1 <= len(requests) <= 10
    assert all(ARP in p for p in requests)
    d.send(reply())
    assert len(d.drain()) == 4  # NEIGHBOUR_QUEUE


@pytest.mark.slow
@pytest.mark.sanitized
def test_echo_flood_does_not_fill_neighbour_table(ethernet):
    """Echo requests from thousands of addresses must not push the peer out, or ask for all."""
    d = ethernet()
    d.connect(80)
    d.expect(REQUEST)
    d.send(reply())
    d.expect(TCP(flags="S"))
    d.strict = False
    for i in range(3000):
        source = f"10.{i >> 8}.{i & 255}.7"
        d.send(IP(src=source, dst=STACK_ADDRESS) / ICMP(type=8))
    d.ignore()
    d.connect(81)
    packets = d.drain(until=d.now + 100)
    if ARP in packets[0]:
        d.send(reply())
        packets = d.drain(until=d.now + 4000)
    assert any(TCP in p and p[TCP].dport == 81 for p in packets)


@cache
def invented():
    """SYNs from a thousand addresses of our own network, of which each has to be asked for."""
    network = STACK_ADDRESS.rsplit(".", 2)[0]
    sources = [f"{network}.{100 + number // 250}.{1 + number % 250}" for number in range(1000)]
    return [bytes(Ether(src=OTHER_MAC, dst=STACK_MAC)
                  / IP(src=source, dst=STACK_ADDRESS) / TCP(flags="S", dport=90, seq=1))
            for source in sources]  # fmt: skip


def flood(d, count=1000):
    for frame in invented()[:count]:
        d.stack.input(frame)
    d.settle()


@pytest.fixture
def flooded(ethernet):
    """A listener under such a flood; what was said to it is forgotten."""

    def make(count=1000, **config):
        d = ethernet(prefix=16, max_connections=2048, **config)
        d.listen(90, backlog=2048)
        d.strict = False
        flood(d, count)
        d.ignore()
        return d

    return make


def test_syn_flood_does_not_evict_reachable_neighbour(ethernet):
    """The stack answers the SYNs, so it sends ARP requests for forged addresses without a host."""
    d = ethernet(prefix=16)
    d.connect(80)
    d.expect(REQUEST)
    d.send(reply())
    d.expect(TCP(flags="S", dport=80))
    d.listen(90, backlog=16)
    d.strict = False
    flood(d)
    d.ignore(until=d.now + 10)
    d.connect(81)
    (syn,) = (p for p in d.drain() if TCP in p and p[TCP].flags == "S")
    assert syn.dst == PEER_MAC


def asked_for(packets):
    return [p[ARP].pdst for p in packets if ARP in p and p[ARP].op == 1]


def test_arp_requests_for_new_addresses_are_rate_limited(ethernet):
    """256 new addresses a second, and those once more that have not answered."""
    d = ethernet(prefix=16, max_connections=2048)
    d.listen(90, backlog=2048)
    flood(d)
    assert len(asked_for(d.drain())) == 256
    assert d.stack.counters()["arp_requests_limited"] == 1000 - 256
    began, asked = d.now, 0
    while d.now < began + 5000:
        flood(d)
        asked += len(asked_for(d.drain(until=d.now + 250)))
    assert 256 < asked <= 5 * (256 + 256)


def test_host_that_sent_arp_is_resolved_during_flood(flooded):
    """A host that sent an ARP request is exempt from the limit for forged addresses."""
    d = flooded()
    d.send(ARP(op=1, hwsrc=PEER_MAC, psrc=PEER_ADDRESS, pdst=STACK_ADDRESS))
    d.expect(ARP(op=2, hwdst=PEER_MAC))
    d.send(TCP(flags="S", dport=90, seq=0))
    assert asked_for(d.drain()) == [PEER_ADDRESS]
    d.send(reply())
    assert d.expect(TCP(flags="SA")).dst == PEER_MAC


def test_connect_sends_arp_request_during_flood(flooded):
    d = flooded()
    d.connect(80)
    d.expect(REQUEST)


def test_rate_limited_arp_request_is_sent_later(flooded):
    d = flooded(256)
    d.send(TCP(flags="S", dport=90, seq=0))
    d.silence(during=900)
    assert PEER_ADDRESS in asked_for(d.drain(until=d.now + 200))


def test_gateway_is_resolved_during_flood(flooded):
    d = flooded(gateway="192.0.255.1")
    d.send(Ether(src=OTHER_MAC, dst=STACK_MAC)
           / IP(src="10.1.2.3", dst=STACK_ADDRESS) / TCP(flags="S", dport=90, seq=1))  # fmt: skip
    assert asked_for(d.drain()) == ["192.0.255.1"]


def test_arp_request_for_own_address_is_answered(ethernet):
    d = ethernet()
    d.send(ARP(op=1, hwsrc=PEER_MAC, psrc=PEER_ADDRESS, pdst=STACK_ADDRESS))
    answer = d.expect(
        ARP(op=2, hwsrc=STACK_MAC, psrc=STACK_ADDRESS, hwdst=PEER_MAC, pdst=PEER_ADDRESS)
    )
    assert answer.dst == PEER_MAC


def test_arp_probe_for_own_address_is_answered(ethernet):
    """RFC 5227, 2.1.1: a host that wants our address asks with sender 0.0.0.0."""
    d = ethernet()
    d.send(ARP(op=1, hwsrc=OTHER_MAC, psrc="0.0.0.0", pdst=STACK_ADDRESS))
    d.expect(ARP(op=2, hwsrc=STACK_MAC, psrc=STACK_ADDRESS, hwdst=OTHER_MAC))


def test_arp_request_for_other_address_is_ignored(ethernet):
    d = ethernet()
    d.send(ARP(op=1, hwsrc=PEER_MAC, psrc=PEER_ADDRESS, pdst="192.0.2.77"))
    d.silence(during=1000)


def test_sender_of_arp_request_is_resolved(ethernet):
    """RFC 826 would learn from the question; asking back instead lets no flood fill the table."""
    d = ethernet(on_arp=True)
    d.send(ARP(op=1, hwsrc=PEER_MAC, psrc=PEER_ADDRESS, pdst=STACK_ADDRESS))
    d.expect(ARP(op=2))
    d.connect(80)
    assert d.expect(TCP(flags="S")).dst == PEER_MAC


def test_unsolicited_arp_reply_is_ignored(ethernet):
    d = ethernet()
    d.send(reply(OTHER_MAC))
    d.connect(80)
    d.expect(REQUEST)


def test_conflicting_arp_is_defended_and_address_kept(ethernet):
    """RFC 5227, 2.4: one defence in ten seconds at most, and the address stays in use."""
    d = ethernet()
    d.strict = False
    claim = ARP(op=1, hwsrc=OTHER_MAC, psrc=STACK_ADDRESS, pdst=STACK_ADDRESS)
    for _ in range(20):
        d.send(claim, at=d.now + 100)
    defences = d.drain()
    assert len(defences) <= 1
    d.send(ARP(op=1, hwsrc=PEER_MAC, psrc=PEER_ADDRESS, pdst=STACK_ADDRESS))
    d.expect(ARP(op=2, hwsrc=STACK_MAC))


def test_conflicting_arp_does_not_redirect_own_address(ethernet):
    d = ethernet()
    d.strict = False
    d.send(ARP(op=2, hwsrc=OTHER_MAC, psrc=STACK_ADDRESS, hwdst=STACK_MAC, pdst=STACK_ADDRESS))
    d.ignore()
    d.connect(80)
    d.expect(REQUEST)


@pytest.mark.parametrize("about", [STACK_ADDRESS, PEER_ADDRESS])
def test_our_own_question_that_comes_back_is_ignored(ethernet, about):
    """A hub returns it, or a switch with a loop: it is no answer, and no news of us."""
    d = ethernet()
    d.connect(80)
    asked = d.expect(REQUEST)
    asked[ARP].pdst = about
    d.stack.socket().connect_ex((STACK_ADDRESS, 81))
    d.settle()
    d.expect(TCP(flags="S", dport=81))
    d.send(asked)
    during = d.drain(until=d.now + 70_000)
    ours = [p[ARP] for p in during if ARP in p and STACK_ADDRESS in (p[ARP].pdst, p[ARP].psrc)]
    assert {(p.op, p.pdst) for p in ours} == {(1, PEER_ADDRESS)}, d.render()


def test_off_link_destination_uses_gateway(ethernet):
    d = ethernet(gateway="192.0.2.254")
    d.stack.socket().connect_ex(("198.51.100.7", 80))
    d.settle()
    d.expect(ARP(op=1, pdst="192.0.2.254"))
    d.send(reply(OTHER_MAC, "192.0.2.254"))
    syn = d.expect(TCP(flags="S"))
    assert syn.dst == OTHER_MAC
    assert syn[IP].dst == "198.51.100.7"


def test_on_link_gateway_outside_prefix_32(ethernet):
    """A cloud's /32: the gateway lies outside the prefix, and is asked for all the same."""
    d = ethernet(prefix=32, gateway="192.0.2.254")
    d.stack.socket().connect_ex((PEER_ADDRESS, 80))
    d.settle()
    d.expect(ARP(op=1, pdst="192.0.2.254"))


def test_off_link_destination_without_gateway_is_enetunreach(ethernet):
    d = ethernet()
    assert d.stack.socket().connect_ex(("198.51.100.7", 80)) == errno.ENETUNREACH
    d.silence(during=1000)


def test_frames_for_other_mac_are_dropped(ethernet):
    d = ethernet()
    frame = Ether(src=PEER_MAC, dst=OTHER_MAC) / IP(src=PEER_ADDRESS, dst=STACK_ADDRESS)
    d.send(frame / ICMP(type=8))
    d.silence(during=1000)


def test_arp_reply_with_group_mac_is_ignored(ethernet):
    d = ethernet()
    d.connect(80)
    d.expect(REQUEST)
    d.send(reply("01:00:5e:00:00:01"))
    d.send(reply(BROADCAST))
    assert all(ARP in p for p in d.drain(until=d.now + 500))


@pytest.mark.parametrize(
    "packet",
    [
        ARP(hwtype=6, op=1, hwsrc=PEER_MAC, psrc=PEER_ADDRESS, pdst=STACK_ADDRESS),
        ARP(ptype=0x86DD, op=1, hwsrc=PEER_MAC, psrc=PEER_ADDRESS, pdst=STACK_ADDRESS),
        ARP(op=9, hwsrc=PEER_MAC, psrc=PEER_ADDRESS, pdst=STACK_ADDRESS),
    ],
    ids=["hardware", "protocol", "operation"],
)
def test_arp_of_foreign_type_or_operation_is_ignored(ethernet, packet):
    d = ethernet()
    d.send(packet)
    d.silence(during=1000)


def test_truncated_arp_is_ignored(ethernet):
    d = ethernet()
    whole = bytes(
        Ether(src=PEER_MAC, dst=BROADCAST)
        / ARP(op=1, hwsrc=PEER_MAC, psrc=PEER_ADDRESS, pdst=STACK_ADDRESS)
    )
    for length in range(len(whole)):
        d.send(whole[:length])
    d.silence(during=1000)
    d.send(whole + b"\0" * 18)  # padding to the minimum is no fault
    d.expect(ARP(op=2))


def test_unannounced_mac_change_is_found_by_reresolution(ethernet):
    """RFC 1122, 2.3.2.1: a stale entry must not last, even if nobody announces the move."""
    d = ethernet(on_arp=True)
    c = d.open_passive()
    d.on_arp = d.strict = False
    sent = 0
    while d.now < 180_000:
        c.send(b"x")
        for p in d.drain(until=d.now + 2000):
            if ARP in p and p[ARP].op == 1 and p.dst in (BROADCAST, OTHER_MAC):
                d.send(reply(OTHER_MAC))
            elif TCP in p and p.dst == OTHER_MAC:
                return
            elif TCP in p and d.now < 10_000:
                sent += 1  # until then the old station still answers
                d.send(TCP(flags="A", seq=1, ack=1 + sent))
    d.fail("frames still go to the old station after three minutes")


def test_reachable_neighbour_is_probed_before_mac_changes(ethernet):
    """No other host gets a neighbour's frames while it answers unicast requests."""
    d = ethernet(on_arp=True)
    c = d.open_passive()
    d.on_arp = d.strict = False
    d.run(d.now + 1100)  # it is asked at most once a second
    for sent in range(3):
        d.send(reply(OTHER_MAC))
        d.send(ARP(op=1, hwsrc=OTHER_MAC, psrc=PEER_ADDRESS, pdst=STACK_ADDRESS))
        c.send(b"x")
        packets = d.drain()
        assert [p.dst for p in packets if TCP in p] == [PEER_MAC]
        asked = [p for p in packets if ARP in p and p[ARP].op == 1]
        assert [p.dst for p in asked] == [PEER_MAC]
        d.send(reply())
        d.send(TCP(flags="A", seq=1, ack=2 + sent))
        d.ignore(until=d.now + 1100)


def test_announced_mac_change_is_followed(ethernet):
    d = ethernet(on_arp=True)
    c = d.open_passive()
    d.on_arp = d.strict = False
    moved = d.now
    while d.now - moved < 20_000:
        d.send(ARP(op=1, hwsrc=OTHER_MAC, psrc=PEER_ADDRESS, pdst=PEER_ADDRESS))
        c.send(b"x")
        for p in d.drain(until=d.now + 500):
            if ARP in p and p.dst in (BROADCAST, OTHER_MAC):
                d.send(reply(OTHER_MAC))
            elif TCP in p and p.dst == OTHER_MAC:
                return
    d.fail("frames still go to the old station after twenty seconds")


def known(d):
    """The peer is known; nothing is under way, and each send is a segment."""
    c = d.open_passive()
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    d.on_arp = d.strict = False
    d.run(d.now + 1500)
    d.ignore()
    return c


def to_whom(d, c, during=300):
    """Hardware addresses that our segments went to; the frames besides."""
    c.send(b"x")
    packets = d.drain(until=d.now + during)
    return {p.dst for p in packets if TCP in p}, [p for p in packets if ARP in p]


def test_forged_arp_does_not_hijack_answering_neighbour(ethernet):
    """A storm of claims, asked for and not: segments go on to the one that answers."""
    d = ethernet(on_arp=True)
    c = known(d)
    for i in range(100):
        for _ in range(10):
            d.send(reply(OTHER_MAC))
            d.send(ARP(op=1, hwsrc=OTHER_MAC, psrc=PEER_ADDRESS, pdst=PEER_ADDRESS))
        there, asked = to_whom(d, c)
        assert there <= {PEER_MAC}, i
        if any(p.dst == PEER_MAC for p in asked):
            d.send(reply())
        d.send(TCP(flags="A", seq=1, ack=d.flow().rcv_nxt))


@pytest.mark.parametrize("old_answers", [True, False])
def test_two_hosts_that_answer_for_an_address_are_counted(ethernet, old_answers):
    """The first one keeps it. A host that has moved is no conflict: its old station is silent."""
    d = ethernet()
    sock = d.connect(80)
    d.expect(REQUEST)
    d.on_arp = d.strict = False
    d.send(reply())
    d.send(reply(OTHER_MAC))
    for _ in range(40):
        for p in d.drain(until=d.now + 250):
            if ARP in p and p.dst in (BROADCAST, OTHER_MAC):
                d.send(reply(OTHER_MAC))
            if ARP in p and p.dst in (BROADCAST, PEER_MAC) and old_answers:
                d.send(reply())
    assert sock.error() == 0
    assert ("neighbour_conflicts" in d.stack.counters()) == old_answers


def test_arp_claims_trigger_one_probe_per_second(ethernet):
    """RFC 1122, 2.3.2.1: at most once a second, though every claim is denied at once."""
    d = ethernet(on_arp=True)
    c = known(d)
    began, asked = d.now, 0
    while d.now < began + 10_000:
        d.send(reply(OTHER_MAC))
        found = to_whom(d, c, during=10)[1]
        asked += len(found)
        if found:
            d.send(reply())
        d.send(TCP(flags="A", seq=1, ack=d.flow().rcv_nxt))
    assert 2 <= asked <= 11


def test_mac_change_right_after_old_reply_is_noticed(ethernet):
    """The new station announces itself once; what the old one says then was its last word."""
    d = ethernet(on_arp=True)
    c = known(d)
    d.send(reply(OTHER_MAC))
    d.send(reply())
    moved = d.now
    while d.now < moved + 12_000:
        there, asked = to_whom(d, c)
        if OTHER_MAC in there:
            return
        if any(p.dst in (BROADCAST, OTHER_MAC) for p in asked):
            d.send(reply(OTHER_MAC))
    d.fail("frames still go to the old station after twelve seconds")


def test_arp_replies_to_unknown_hosts_are_rate_limited(ethernet):
    """At most 10,000 answers a second to unknown hosts; a known host is always answered."""
    d = ethernet(on_arp=True)
    known(d)
    asks = ARP(op=1, hwsrc=OTHER_MAC, psrc="192.0.2.20", pdst=STACK_ADDRESS)
    question = bytes(Ether(src=OTHER_MAC, dst=BROADCAST) / asks)
    before = d.stack.counters().get("arp_replies_out", 0)
    for _ in range(10_100):
        d.stack.input(question)
        d.stack.take()
    assert d.stack.counters()["arp_replies_out"] - before == 10_000
    assert d.stack.counters()["arp_replies_limited"] == 100
    d.send(ARP(op=1, hwsrc=PEER_MAC, psrc=PEER_ADDRESS, pdst=STACK_ADDRESS))
    d.expect(ARP(op=2, hwdst=PEER_MAC))
    d.run(d.now + 1000)
    d.ignore()
    d.send(ARP(op=1, hwsrc=OTHER_MAC, psrc="192.0.2.20", pdst=STACK_ADDRESS))
    d.expect(ARP(op=2, hwdst=OTHER_MAC))


@pytest.mark.parametrize("mac", ["01:00:5e:00:00:01", BROADCAST])
def test_arp_request_with_group_sender_mac_is_not_answered(ethernet, mac):
    """A reply to a group address would go to many hosts."""
    d = ethernet()
    d.send(ARP(op=1, hwsrc=mac, psrc=PEER_ADDRESS, pdst=STACK_ADDRESS))
    d.silence(during=1000)


def test_input_before_first_advance_is_harmless(stack):
    s = stack(link=1)
    s.socket().connect_ex((PEER_ADDRESS, 80))
    s.advance(_EPOCH_NS)
    assert s.take()
