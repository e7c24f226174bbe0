# SPDX-License-Identifier: Apache-2.0
"""The flow interface, frame by frame: Ethernet and ARP, frames in pieces, bad sizes."""

from __future__ import annotations

import itertools

import pytest
from flow_pair import TSO, TX, A, B
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.l2 import ARP, Ether

from harp.testing._flow import FlowStack
from harp.testing.device import finish
from harp.testing.frames import check_ipv4
from harp.testing.wire import pattern


def test_out_of_order_runs_are_bounded():
    """CVE-2018-5390: ten thousand pieces with holes between them keep a few packets only."""
    s = FlowStack(address=A, prefix=24, packets=8192, max_connections=4, rcvbuf=1 << 20,
                  window_scale=7)  # fmt: skip
    s.advance(10**12)
    s.listen(80)
    base = IP(src=B, dst=A)
    syn = TCP(sport=9, dport=80, flags="S", seq=5, options=[("WScale", 7)])
    s.receive(bytes(base / syn))
    s.flush()
    ack = check_ipv4(s.take()[0].data).seq + 1
    s.receive(bytes(base / TCP(sport=9, dport=80, flags="A", seq=6, ack=ack)))
    frame = bytearray(bytes(base / TCP(sport=9, dport=80, flags="A", seq=0, ack=ack) / b"x"))
    for i in range(10_000):
        frame[24:28] = (8 + 3 * i).to_bytes(4, "big")
        s.receive(bytes(frame), b"", 0, True)
        s.flush()
    assert s.counters()["tcp_reassembly_drops"] > 9000
    assert s.counters()["packets_used"] <= 256


def ethernet_stack(**options):
    return FlowStack(address=A, prefix=24, link=1, mac="02:00:5e:00:00:01", packets=64,
                     max_connections=8, **options)  # fmt: skip


def packets(stack):
    return [Ether(wire) for frame in stack.take() for wire in finish(frame, 14)]


def test_arp_announcement_has_own_address_as_target():
    """RFC 5227, 2.3: sender and target are our address, the question goes to all."""
    stack = ethernet_stack()
    stack.announce()
    (packet,) = packets(stack)
    assert packet.dst == "ff:ff:ff:ff:ff:ff"
    assert (packet[ARP].op, packet[ARP].psrc, packet[ARP].pdst) == (1, A, A)


def test_shared_address_stack_answers_no_arp_or_echo():
    """The kernel answers ARP, echo and closed ports for it; the stack only asks."""
    stack = ethernet_stack(only_asks=True)
    stack.advance(10**12)
    peer = "02:00:5e:00:00:02"
    to_us = Ether(src=peer, dst="02:00:5e:00:00:01") / IP(src=B, dst=A)
    for packet in (
        Ether(src=peer, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=peer, psrc=B, pdst=A),
        to_us / ICMP(type=8),
        Ether(src=peer, dst="02:00:5e:00:00:01") / IP(src=B, dst=A, proto=99) / b"x",
    ):
        stack.receive(bytes(packet))
    stack.announce()
    stack.flush()
    assert packets(stack) == []
    stack.connect(B, 80)
    stack.flush()
    (asked,) = packets(stack)
    assert asked[ARP].pdst == B


@pytest.mark.parametrize("offloads", [(), TX, TSO], ids=["none", "checksum", "tso"])
def test_packet_queued_for_arp_is_sent_complete(offloads):
    stack = ethernet_stack(offloads=offloads)
    stack.advance(10**12)
    stack.connect(B, 80)
    stack.flush()
    (asked,) = packets(stack)
    reply = ARP(op=2, hwsrc="02:00:5e:00:00:02", psrc=B, hwdst=asked[ARP].hwsrc, pdst=A)
    stack.receive(bytes(Ether(src="02:00:5e:00:00:02", dst=asked.src) / reply))
    stack.flush()
    (syn,) = packets(stack)
    assert check_ipv4(bytes(syn[IP])[: syn[IP].len]).flags == 0x02


def test_large_segment_is_not_queued_for_arp():
    """A connection's neighbour has gone silent and been forgotten: what waits takes one packet
    buffer, and a large segment has no room there."""
    stack = ethernet_stack(offloads=TSO)
    now = 10**12
    stack.advance(now)
    listener = stack.listen(80)
    peer, other = "02:00:5e:00:00:02", "02:00:5e:00:00:03"

    def arrives(packet, source=peer):
        stack.receive(bytes(Ether(src=source, dst="02:00:5e:00:00:01") / packet))
        stack.flush()
        return packets(stack)

    def is_at(mac):
        return ARP(op=2, hwsrc=mac, psrc=B, hwdst="02:00:5e:00:00:01", pdst=A)

    base = IP(src=B, dst=A)
    assert ARP in arrives(base / TCP(sport=9, dport=80, flags="S", seq=5))[0]
    (answer,) = arrives(is_at(peer))
    arrives(base / TCP(sport=9, dport=80, flags="A", seq=6, ack=answer[TCP].seq + 1))
    stack.advance(now := now + 2 * 10**9)
    assert arrives(is_at(other), other)[0].dst == peer  # who is asked, and says nothing
    for _ in range(20):
        stack.advance(now := now + 10**9)
    packets(stack)
    listener.accepted[0].push(b"x" * 5000)
    stack.flush()
    assert [packet.haslayer(TCP) for packet in packets(stack)] == [0]
    assert stack.counters()["arp_queue_drops"] == 1
    assert stack.counters().get("packets_used", 0) == 0


def test_frame_may_be_split_at_any_byte(stack):
    """Every place at which a device may have split a frame gives the same answer."""
    syn = bytes(IP(src=B, dst=A) / TCP(sport=9, dport=80, flags="S", seq=5,
                                       options=[("MSS", 1000), ("WScale", 2)]) / b"")  # fmt: skip
    echo = bytes(IP(src=B, dst=A) / ICMP(type=8, id=3) / pattern(0, 64))
    for frame, answers in ((syn, 1), (echo, 1)):
        whole = None
        for at in itertools.chain([len(frame)], range(len(frame))):
            s = FlowStack(address=A, prefix=24, packets=16, max_connections=4)
            s.advance(10**12)
            s.listen(80)
            s.receive(frame[:at], frame[at:])
            s.flush()
            out = [f.data for f in s.take()]
            whole = whole or out
            assert len(out) == answers
            assert out == whole, at


def test_long_frame_may_be_split_in_its_headers():
    """The bytes that the stack joins do not end with the headers, and the rest stays in place."""
    data = pattern(0, 6000)
    for at in range(1, 60):
        s = FlowStack(address=A, prefix=24, packets=64, max_connections=4, mtu=9000)
        s.advance(10**12)
        listener = s.listen(80)
        base = IP(src=B, dst=A)
        s.receive(bytes(base / TCP(sport=9, dport=80, flags="S", seq=5)))
        s.flush()
        ack = check_ipv4(s.take()[0].data).seq + 1
        s.receive(bytes(base / TCP(sport=9, dport=80, flags="A", seq=6, ack=ack)))
        frame = bytes(base / TCP(sport=9, dport=80, flags="A", seq=6, ack=ack) / data)
        s.receive(frame[:at], frame[at:], 0, True)
        assert bytes(listener.accepted[0].received) == data, at


def test_wrong_gso_size_is_survived():
    """segment_size of nonsense: at worst acknowledgements come oddly."""
    for size in (1, 7, 65_535):
        s = FlowStack(address=A, prefix=24, packets=64, max_connections=4)
        s.advance(10**12)
        listener = s.listen(80)
        s.receive(bytes(IP(src=B, dst=A) / TCP(sport=9, dport=80, flags="S", seq=5)))
        s.flush()
        ack = check_ipv4(s.take()[0].data).seq + 1
        base = IP(src=B, dst=A)
        s.receive(bytes(base / TCP(sport=9, dport=80, flags="A", seq=6, ack=ack)))
        s.receive(
            bytes(base / TCP(sport=9, dport=80, flags="A", seq=6, ack=ack) / pattern(0, 1000)),
            b"", size, True,
        )  # fmt: skip
        s.flush()
        assert bytes(listener.accepted[0].received) == pattern(0, 1000)
