# SPDX-License-Identifier: Apache-2.0
"""Our own address: probed before use, and defended against other hosts (RFC 5227)."""

from __future__ import annotations

import errno

import pytest
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.l2 import ARP, Ether

from harp.testing._flow import FlowStack
from harp.testing.device import finish

US, PEER = "192.0.2.1", "192.0.2.2"
OUR_MAC, PEER_MAC, OTHER_MAC = "02:00:5e:00:00:01", "02:00:5e:00:00:02", "02:00:5e:00:00:99"
BROADCAST = "ff:ff:ff:ff:ff:ff"
ZERO_MAC = "00:00:00:00:00:00"
S = 10**9


def make(mac: str = OUR_MAC, tentative: bool = True, **options) -> FlowStack:
    stack = FlowStack(
        address=US, prefix=24, link=1, mac=mac, packets=64, max_connections=8,
        tentative=tentative, **options,
    )  # fmt: skip
    stack.advance(1000 * S)
    return stack


@pytest.fixture
def stack() -> FlowStack:
    return make()


def sent(stack: FlowStack) -> list[Ether]:
    stack.flush()
    return [Ether(wire) for frame in stack.take() for wire in finish(frame, 14)]


def receive(stack: FlowStack, packet, mac: str = OTHER_MAC, to: str = BROADCAST) -> list[Ether]:
    """The stack receives the packet; returns its answers."""
    stack.receive(bytes(Ether(src=mac, dst=to) / packet))
    return sent(stack)


def question(mac: str = PEER_MAC, sender: str = PEER):
    return ARP(op=1, hwsrc=mac, psrc=sender, pdst=US)


def claim(mac: str = OTHER_MAC):
    return ARP(op=2, hwsrc=mac, psrc=US, hwdst=OUR_MAC, pdst="0.0.0.0")


CONFLICTS = {
    "answer": claim(),
    "announcement": ARP(op=1, hwsrc=OTHER_MAC, psrc=US, pdst=US),
    "question of its own": ARP(op=1, hwsrc=OTHER_MAC, psrc=US, pdst=PEER),
    "probe": question(OTHER_MAC, "0.0.0.0"),
}
each_conflict = pytest.mark.parametrize("packet", CONFLICTS.values(), ids=CONFLICTS)


def test_arp_probe_has_zero_sender_address(stack):
    """RFC 5227, 2.1.1: no cache may learn from it."""
    stack.probe()
    (packet,) = sent(stack)
    assert packet.dst == BROADCAST
    asked = packet[ARP]
    assert (asked.op, asked.hwsrc, asked.psrc) == (1, OUR_MAC, "0.0.0.0")
    assert (asked.hwdst, asked.pdst) == (ZERO_MAC, US)


def test_unused_address_is_announced_and_answered_for(stack):
    stack.probe()
    sent(stack)
    assert stack.conflict() is None
    stack.use_address()
    stack.announce()
    (packet,) = sent(stack)
    assert (packet[ARP].psrc, packet[ARP].pdst) == (US, US)
    (answer,) = receive(stack, question(), PEER_MAC)
    assert (answer[ARP].op, answer[ARP].psrc) == (2, US)


@pytest.mark.parametrize("sender", [PEER, "0.0.0.0"])
def test_tentative_address_sends_no_arp(stack, sender):
    assert receive(stack, question(PEER_MAC, sender), PEER_MAC) == []
    stack.announce()
    assert sent(stack) == []


@pytest.mark.parametrize("payload", [ICMP(type=8), TCP(flags="S", dport=80)], ids=["echo", "syn"])
def test_tentative_address_sends_no_ip(stack, payload):
    packet = IP(src=PEER, dst=US) / payload
    assert receive(stack, packet, PEER_MAC, OUR_MAC) == []
    stack.use_address()
    (asked,) = receive(stack, packet, PEER_MAC, OUR_MAC)
    assert asked[ARP].pdst == PEER


@each_conflict
def test_conflict_during_probing_bars_the_address(stack, packet):
    """It is named, and the address is not used: neither now nor later."""
    stack.probe()
    sent(stack)
    assert receive(stack, packet) == []
    assert stack.conflict() == OTHER_MAC
    assert stack.counters()["arp_conflicts"] == 1
    for _ in range(2):
        with pytest.raises(OSError) as failure:
            stack.use_address()
        assert failure.value.errno == errno.EADDRINUSE
    stack.announce()
    assert sent(stack) == []
    stack.advance(2000 * S)
    assert receive(stack, question(), PEER_MAC) == []


@each_conflict
def test_arp_from_own_mac_is_no_conflict(stack, packet):
    """A switch returns our probe; a process that has crashed said it a moment ago."""
    own = packet.copy()
    own.hwsrc = OUR_MAC
    receive(stack, own, OUR_MAC)
    assert stack.conflict() is None
    stack.use_address()


def test_unrelated_arp_is_no_conflict(stack):
    receive(stack, ARP(op=1, hwsrc=PEER_MAC, psrc="0.0.0.0", pdst=PEER), PEER_MAC)
    receive(stack, ARP(op=1, hwsrc=PEER_MAC, psrc=PEER, pdst="192.0.2.7"), PEER_MAC)
    receive(stack, ARP(op=2, hwsrc=PEER_MAC, psrc=PEER, hwdst=OUR_MAC, pdst=US), PEER_MAC, OUR_MAC)
    assert stack.conflict() is None


def test_simultaneous_probes_make_both_hosts_decline():
    """RFC 5227, 2.1.1: each host receives the other's probe for the address."""
    one, other = make(), make(mac=OTHER_MAC)
    one.probe()
    other.probe()
    ((from_one,), (from_other,)) = sent(one), sent(other)
    one.receive(bytes(from_other))
    other.receive(bytes(from_one))
    assert (one.conflict(), other.conflict()) == (OTHER_MAC, OUR_MAC)


def used(mac: str = OUR_MAC) -> FlowStack:
    stack = make(mac)
    stack.use_address()
    stack.announce()
    sent(stack)
    return stack


def test_arp_probe_for_address_in_use_is_answered():
    stack = used()
    (answer,) = receive(stack, question(OTHER_MAC, "0.0.0.0"))
    assert (answer.dst, answer[ARP].op, answer[ARP].psrc) == (OTHER_MAC, 2, US)
    assert stack.conflict() is None


def test_address_is_defended_once_in_ten_seconds():
    """RFC 5227, 2.4 (b): none within ten seconds of another conflict; the address is kept."""
    stack = used()
    (defence,) = receive(stack, claim())
    assert (defence[ARP].op, defence[ARP].psrc, defence[ARP].pdst) == (1, US, US)
    for second in range(1001, 1060, 9):
        stack.advance(second * S)
        assert receive(stack, claim()) == []
    assert stack.conflict() == OTHER_MAC
    (answer,) = receive(stack, question(), PEER_MAC)
    assert answer[ARP].op == 2
    stack.advance(1070 * S)
    assert len(receive(stack, claim())) == 1


def test_two_defending_hosts_fall_silent():
    one, other = used(), used(OTHER_MAC)
    one.announce()
    said = 0
    for _ in range(10):
        for sender, receiver in ((one, other), (other, one)):
            for packet in sent(sender):
                said += 1
                receiver.receive(bytes(packet))
    assert said == 3  # what began it, and a defence of each


def test_unannounced_address_is_not_defended():
    """The other instances of a process: one speaks for all."""
    stack = make(tentative=False)
    assert receive(stack, claim()) == []
    assert stack.conflict() == OTHER_MAC


def test_shared_address_is_not_defended():
    stack = make(tentative=False, only_asks=True)
    stack.announce()
    assert receive(stack, claim()) == []
