# SPDX-License-Identifier: Apache-2.0
"""The stack as an engine drives it: references, bursts, offloads, frames in pieces."""

from __future__ import annotations

import errno
import itertools

import pytest
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.l2 import ARP, Ether

from harp.testing._flow import FlowStack
from harp.testing.device import FlowHost, FlowTransfer, connect_flows, finish
from harp.testing.frames import check_ipv4
from harp.testing.wire import Impairment, WireError, pattern

A, B = "192.0.2.1", "192.0.2.2"
BASE = {
    "prefix": 24,
    "max_connections": 64,
    "packets": 2048,
    "rto_min_us": 5_000,
    "delayed_ack_us": 1_000,
    "timestamps": 1,
    "window_scale": 7,
    "rcvbuf": 1 << 20,
}
TX = ("tx_checksum",)
TSO = ("tx_checksum", "tso")


def pair(wire, *, offloads=(), device=None, impair=None, delay_ns=20_000, rate_bps=0, capture=False,
         **config):  # fmt: skip
    """A wire between two hosts with devices."""
    hosts = []
    for address, seed in ((A, (1, 2)), (B, (3, 4))):
        fields = {**BASE, "address": address, "seed": seed, **config}
        stack = FlowStack(offloads=offloads, **fields)
        hosts.append(FlowHost(stack, seed=seed[0], **(device or {})))
    mtu = config.get("mtu", 1500)
    w = wire(*hosts, impair=impair, mtu=mtu, delay_ns=delay_ns, rate_bps=rate_bps, capture=capture)
    return w, hosts[0], hosts[1]


def test_flow_delivers_pushed_references(wire):
    w, a, b = pair(wire)
    one, other = connect_flows(w, a, b)
    w.run([FlowTransfer(one, other, 300_000)])
    assert one.pushed == one.acked == 300_000


@pytest.mark.parametrize("offloads", [(), TX, TSO], ids=["none", "checksum", "tso"])
@pytest.mark.parametrize("split", ["whole", "headers", "anywhere"])
@pytest.mark.parametrize("merge", [0, 60_000], ids=["single", "merged"])
@pytest.mark.parametrize("faults", [0, 0.02], ids=["clean", "faulty"])
def test_transfer_works_over_every_device_kind(wire, offloads, split, merge, faults):
    impair = Impairment(drop=faults, duplicate=faults, reorder=faults, corrupt=faults, seed=3)
    w, a, b = pair(wire, offloads=offloads, device={"split": split, "merge": merge}, impair=impair)
    one, other = connect_flows(w, a, b)
    w.run([FlowTransfer(one, other, 200_000), FlowTransfer(other, one, 100_000)], limit_s=120)
    if merge and offloads == TSO:
        assert b.merged > 0


@pytest.mark.parametrize("seed", range(4))
def test_transfer_works_over_often_full_device(wire, seed):
    w, a, b = pair(wire, device={"refuse": 3}, impair=Impairment(drop=0.01, seed=seed))
    one, other = connect_flows(w, a, b)
    w.run([FlowTransfer(one, other, 150_000), FlowTransfer(other, one, 150_000)], limit_s=120)


def test_full_device_takes_retransmission_in_pieces(wire):
    """What of a long one it took is not offered again: that would never come to an end."""
    losses = 12
    sent = []

    def impair(frame):
        segment = check_ipv4(frame)
        if segment.src == A and segment.payload:
            sent.append(segment.seq)
            if len(sent) <= losses:
                return []
        return [(0, frame)]

    w, a, b = pair(wire, impair=impair, initial_window=100, rto_min_us=500_000)
    one, other = connect_flows(w, a, b)
    transfer = FlowTransfer(one, other, 60_000)
    w.run([transfer], until=lambda: len(sent) > losses, limit_s=20)
    a.refuse = 1
    w.run([transfer], limit_s=20)
    assert len(sent) == len(set(sent)) + losses


def test_full_device_takes_part_of_tail_loss_probe(wire):
    """New data of a segment's length, in pieces that are segments each: what the device took of it
    the peer acknowledges like all else."""
    lost = []

    def impair(frame):
        segment = check_ipv4(frame)
        if segment.src == A and segment.payload and len(lost) < 4:
            lost.append(segment.seq)
            return []
        return [(0, frame)]

    w, a, b = pair(wire, impair=impair, initial_window=2, rto_min_us=500_000)
    one, other = connect_flows(w, a, b)
    a.refuse = 1
    w.run([FlowTransfer(one, other, 30_000, pieces=(700,), every=1)], limit_s=20)
    counters = a.stack.counters()
    assert counters["tcp_tail_probes"] > 0 and "tcp_bad_ack" not in counters


@pytest.mark.parametrize(
    "pieces", [(1,), (3, 1), (1460,), (100_000,), (16, 40, 9000), (65_536, 16)]
)
@pytest.mark.parametrize("every", [0, 1, 2])
def test_transfer_works_with_every_reference_size(wire, pieces, every):
    w, a, b = pair(wire, offloads=TSO, impair=Impairment(drop=0.01, seed=2))
    one, other = connect_flows(w, a, b)
    size = min(400_000, 700 * sum(pieces))
    w.run([FlowTransfer(one, other, size, pieces=pieces, every=every)], limit_s=120)


def test_end_mark_begins_new_segment(wire):
    """What is pushed behind an end mark is the first payload of a segment."""
    w, a, b = pair(wire, offloads=TSO, capture=True)
    one, other = connect_flows(w, a, b)
    one.trust(5000)
    w.run([FlowTransfer(one, other, 4 * 5000, pieces=(5000,), every=1)])
    segments = [check_ipv4(f) for _, sent, f in w.capture if sent]
    data = [s for s in segments if s and s.payload]
    starts = {(s.seq - data[0].seq) % 2**32 for s in data}
    assert starts >= {0, 5000, 10_000, 15_000}


@pytest.mark.parametrize("appetite", [1, 700, 5000, 40_000])
def test_slow_receiver_gets_all_data(wire, appetite):
    w, a, b = pair(wire, rcvbuf=60_000)
    one, other = connect_flows(w, a, b)
    size = min(300 * appetite, 200_000)
    w.run([FlowTransfer(one, other, size, appetite=appetite)], limit_s=600)


def test_stalled_receiver_closes_window(wire):
    w, a, b = pair(wire, rcvbuf=60_000)
    one, other = connect_flows(w, a, b)
    transfer = FlowTransfer(one, other, 500_000, close=False)
    other.limit = 0
    end = w.now + 10**9
    w.run([transfer], until=lambda: w.now >= end, limit_s=5)
    assert 30_000 <= one.acked < 60_000 + 128  # the window field counts in 128 bytes
    assert not other.in_order()
    other.limit = None
    other.resume()
    assert other.in_order()
    w.run([transfer])


def test_lost_window_update_is_recovered_by_probe(wire):
    """A closed window is probed although all that was pushed is acknowledged: there is more."""
    deaf = {"on": False}

    def impair(frame):
        return [] if deaf["on"] and check_ipv4(frame).src == B else [(0, frame)]

    w, a, b = pair(wire, rcvbuf=20_000, window_scale=0, impair=impair)
    one, other = connect_flows(w, a, b)
    other.limit = 0
    transfer = FlowTransfer(one, other, 60_000, pieces=(1000,))
    w.run([transfer], until=lambda: one.acked == 20_000, limit_s=20)
    deaf["on"] = True
    other.limit = None
    other.resume()
    b.stack.flush()
    w.flush()
    deaf["on"] = False
    w.run([transfer], limit_s=20)


def test_short_tail_is_filled_by_pull(wire):
    """Nagle holds it back; if nobody asked for more, each would wait for a delayed answer."""
    w, a, b = pair(wire, delayed_ack_us=40_000)
    one, other = connect_flows(w, a, b)
    one.one_by_one = True
    began = w.now
    w.run([FlowTransfer(one, other, 1_000_000, pieces=(5000,))], limit_s=20)
    assert w.now - began < 2_000_000  # ns: 8 ms with a stop at every tail


def test_flow_resumes_while_other_flow_holds_packet_memory(wire):
    """One flow's owner is late and its bytes fill the memory. The other's was late, too, and then
    takes everything: it has been refused, and is told at once that there is room."""
    w, a, b = pair(wire, packets=64)
    late, late_other = connect_flows(w, a, b, 7000)
    good, good_other = connect_flows(w, a, b, 7001)
    late_other.limit = good_other.limit = 0
    hold = FlowTransfer(late, late_other, 300_000)
    w.run([hold], until=lambda: w.now > 0 and late.acked >= 100_000, limit_s=5)
    moved = FlowTransfer(good, good_other, 460_000)
    refused = lambda: b.stack.counters().get("tcp_memory_drops", 0) > 0  # noqa: E731
    w.run([moved], until=refused, limit_s=5)
    good_other.limit = None
    good_other.resume()
    b.stack.flush()
    w.flush()
    began = w.now
    w.run([moved], limit_s=20)
    assert w.now - began < 500_000_000  # ns


def test_memory_is_not_read_after_its_acknowledgement(wire):
    """Flow spoils what is acknowledged; with losses and duplicates nothing spoiled may appear."""
    faults = Impairment(drop=0.05, duplicate=0.05, reorder=0.1, reorder_ns=5_000_000, seed=7)
    w, a, b = pair(wire, impair=faults, offloads=TSO)
    one, other = connect_flows(w, a, b)
    w.run([FlowTransfer(one, other, 400_000, pieces=(1000,))], limit_s=120)


def test_close_is_reported_to_both_owners(wire):
    w, a, b = pair(wire)
    one, other = connect_flows(w, a, b)
    w.run([FlowTransfer(one, other, 10_000)])
    w.run(until=other.at_end, limit_s=1)
    assert other.readable > 0
    other.close()
    w.run(until=lambda: other.closed is not None and one.closed is not None, limit_s=100)
    assert (one.closed, other.closed) == (0, 0)
    with pytest.raises(ValueError):
        one.ready()


def test_abort_sends_reset(wire):
    w, a, b = pair(wire)
    one, other = connect_flows(w, a, b)
    one.push(b"x" * 100_000)
    one.abort()
    w.run(until=lambda: other.closed is not None, limit_s=1)
    assert other.closed == errno.ECONNRESET
    assert one.closed is None  # closed() is not called after abort
    w.run(limit_s=10)
    assert a.next_deadline() is None


def test_push_after_close_is_epipe(wire):
    w, a, b = pair(wire)
    one, _ = connect_flows(w, a, b)
    one.close()
    with pytest.raises(BrokenPipeError):
        one.push(b"late")


def test_references_are_bounded_by_enobufs(wire):
    w, a, b = pair(wire, impair=lambda frame: [(0, frame)])
    one, other = connect_flows(w, a, b)
    other.limit = 0
    with pytest.raises(OSError) as caught:
        for _ in range(100_000):
            one.push(b"x")
    assert caught.value.errno == errno.ENOBUFS
    other.limit = None
    sent = one.pushed
    other.resume()
    w.run(until=lambda: len(other.received) == sent, limit_s=10)


def test_drained_means_all_data_acked(wire):
    w, a, b = pair(wire)
    one, _ = connect_flows(w, a, b)
    assert one.drained()
    one.push(b"x")
    assert not one.drained()
    w.run(until=one.drained, limit_s=1)


def test_connection_refused_by_owner_is_reset(wire):
    w, a, b = pair(wire)
    listener = b.stack.listen(7000)
    listener.refuse = -errno.EACCES
    flow = a.stack.connect(B, 7000)
    w.run(until=lambda: flow.closed is not None, limit_s=10)
    assert flow.closed == errno.ECONNRESET


def test_harp_peer_burst_is_acked_once_and_at_once(wire):
    """Between HARP hosts: one acknowledgement for all that came in one burst, and at once."""
    w, a, b = pair(wire, delayed_ack_us=200_000)
    one, other = connect_flows(w, a, b)
    one.trust(5000)
    other.trust(5000)
    w.run([FlowTransfer(one, other, 100_000, close=False)])
    counters = b.stack.counters()
    assert counters["tcp_acks_out"] <= counters["tcp_segments_in"] / 3
    began = w.now
    one.push(b"x")
    w.run(until=one.drained, limit_s=1)
    assert w.now - began <= 45_000  # two crossings of 20 us, no timer


def test_each_out_of_order_segment_of_burst_is_acked(wire):
    """RFC 5681, 4.2: by a stranger's. Of several acknowledgements one may be lost."""
    answers = []

    def impair(frame):
        segment = check_ipv4(frame)
        if segment.src == B:
            answers.append(segment.ack)
            return [] if len(answers) > 1 else [(0, frame)]  # all but the SYN's
        missing = segment.payload and not lost
        lost.extend([segment.seq] if missing else [])
        return [] if missing else [(0, frame)]

    lost = []
    w, a, b = pair(wire, impair=impair, initial_window=10, rto_min_us=500_000)
    one, other = connect_flows(w, a, b)
    w.run([FlowTransfer(one, other, 100_000)], until=lambda: len(answers) > 5, limit_s=1)
    assert answers[1:] == lost * 9


@pytest.mark.parametrize(
    ("trusted", "shut", "answers"),
    [(False, False, 6), (False, True, 6), (True, False, 1)],
    ids=["a stranger", "a stranger who hears no more", "a HARP host"],
)
def test_burst_acks_differ_for_harp_and_other_peers(wire, trusted, shut, answers):
    """RFC 5681, 4.2: of ten and a FIN in one burst. HARP hosts get one acknowledgement a burst."""
    w, a, b = pair(wire, initial_window=10, delayed_ack_us=40_000)
    one, other = connect_flows(w, a, b)
    if trusted:
        other.trust(5000)
    if shut:
        other.close()
    w.run(limit_s=0.1)
    before = b.stack.counters().get("tcp_acks_out", 0)
    w.run([FlowTransfer(one, other, 10 * 1448)], limit_s=1)
    assert b.stack.counters()["tcp_acks_out"] - before == answers


def test_user_timeout_closes_flow_with_etimedout(wire):
    alive = {"on": True}
    w, a, b = pair(wire, impair=lambda f: [(0, f)] if alive["on"] else [])
    one, other = connect_flows(w, a, b)
    one.set_timeout(300)
    alive["on"] = False
    began = w.now
    one.push(b"x")
    w.run(until=lambda: one.closed is not None, limit_s=10)
    assert one.closed == errno.ETIMEDOUT
    assert 299_000_000 <= w.now - began <= 600_000_000


def test_keepalive_detects_dead_peer(wire):
    alive = {"on": True}
    w, a, b = pair(wire, impair=lambda f: [(0, f)] if alive["on"] else [])
    one, other = connect_flows(w, a, b)
    one.set_keepalive(1000, 200, 3)
    end = w.now + 5 * 10**9
    w.run(until=lambda: w.now >= end, limit_s=10)
    assert one.closed is None
    alive["on"] = False
    began = w.now
    w.run(until=lambda: one.closed is not None, limit_s=10)
    assert one.closed == errno.ETIMEDOUT
    assert w.now - began <= 2_000_000_000


@pytest.mark.parametrize("timeout_ms", [5000, 40_000])
def test_user_timeout_lasts_as_configured(wire, timeout_ms):
    """However often something was sent again until then."""
    alive = {"on": True}
    w, a, b = pair(wire, impair=lambda f: [(0, f)] if alive["on"] else [])
    one, other = connect_flows(w, a, b)
    one.set_timeout(timeout_ms)
    one.set_keepalive(timeout_ms // 3, timeout_ms // 10, 6)
    alive["on"] = False
    began = w.now
    one.push(b"x")
    w.run(until=lambda: one.closed is not None, limit_s=100)
    assert timeout_ms - 1 <= (w.now - began) / 1e6 <= timeout_ms + 300


def test_full_device_is_not_a_dead_peer(wire):
    """For a while it takes nothing, probes neither: they are no keepalives without an answer."""
    w, a, b = pair(wire)
    one, other = connect_flows(w, a, b)
    one.set_timeout(1000)
    one.set_keepalive(333, 50, 6)
    a.stack.room = 0
    one.push(b"x" * 1000)
    for _ in range(800):
        w.now += 1_000_000
        a.stack.advance(w.now)
    assert one.closed is None
    a.stack.room = None
    w.run(until=one.drained, limit_s=1)


def refuse(w, a, seconds):
    """The device takes nothing for so long."""
    end = w.now + int(seconds * 10**9)
    while w.now < end:
        a.stack.room = 0
        a.stack.advance(w.now)
        w.now += 50_000_000


def test_unsent_keepalive_probes_do_not_count(wire):
    """Keepalives that a full port refuses: as soon as one goes out, the peer answers."""
    w, a, b = pair(wire)
    client, _ = connect_flows(w, a, b)
    client.set_keepalive(1000, 100, 3)
    refuse(w, a, 1.5)
    assert client.closed is None
    assert a.stack.counters().get("tcp_keepalives", 0) == 0
    a.stack.room = None
    w.run(until=lambda: a.stack.counters().get("tcp_keepalives", 0) >= 2, limit_s=10)
    assert client.closed is None


def test_device_refusing_all_probes_ends_connection(wire):
    """It has gone, and a connection that only waits has no other timer to end it."""
    w, a, b = pair(wire)
    client, _ = connect_flows(w, a, b)
    client.set_keepalive(1000, 100, 3)
    refuse(w, a, 2)
    assert client.closed == errno.ETIMEDOUT


def test_counters_match_lossy_transfer(wire):
    w, a, b = pair(wire, impair=Impairment(drop=0.05, seed=1))
    one, other = connect_flows(w, a, b)
    w.run([FlowTransfer(one, other, 300_000)], limit_s=60)
    sender, receiver = a.stack.counters(), b.stack.counters()
    assert sender["tcp_payload_out"] == receiver["tcp_payload_in"] == 300_000
    assert sender["tcp_retransmits"] > 0
    assert sender["tcp_active_opens"] == receiver["tcp_passive_opens"] == 1
    assert receiver["tcp_out_of_order"] > 0
    assert sender["tcp_sack_in"] > 0


def test_packet_buffers_are_all_freed_after_transfer(wire):
    """After the last byte no packet buffer is in use on either side."""
    faults = Impairment(drop=0.03, duplicate=0.03, reorder=0.05, corrupt=0.02, seed=5)
    w, a, b = pair(wire, impair=faults)
    for port in range(7000, 7010):
        one, other = connect_flows(w, a, b, port)
        w.run([FlowTransfer(one, other, 50_000, appetite=9000)], limit_s=120)
        other.close()
    w.run(limit_s=1000)
    for host in (a, b):
        counters = host.stack.counters()
        assert counters.get("packets_used", 0) == 0
        assert counters.get("tcp_connections", 0) == 0
        assert counters.get("tcp_established", 0) == 0


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


# Ethernet, and a shared address


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


# The device itself


def test_model_device_detects_bad_offload_requests(wire):
    w, a, b = pair(wire, offloads=TSO)
    one, _ = connect_flows(w, a, b)
    one.trust(5000)  # no waiting for full segments
    one.push(b"x" * 5000)
    a.stack.flush()
    (frame,) = a.stack.take()
    assert len(finish(frame, 0)) == 4
    with pytest.raises(WireError, match="pseudo-header"):
        finish(frame._replace(data=frame.data[:36] + b"\x00\x01" + frame.data[38:]), 0)
    with pytest.raises(WireError, match="checksum at"):
        finish(frame._replace(checksum_start=21), 0)
    with pytest.raises(WireError, match="segment_size"):
        finish(frame._replace(segment_size=9000), 0)


def test_a_fin_behind_what_waits_is_told_of(wire):
    w, a, b = pair(wire)
    one, other = connect_flows(w, a, b)
    other.limit = 0
    one.push(b"last words")
    one.close()
    w.run(until=one.drained, limit_s=1)
    assert not other.at_end()
    told, other.limit = other.readable, None
    other.resume()
    assert other.at_end() and other.readable == told + 1


def test_close_in_syn_received_sends_fin_after_handshake(wire):
    """RFC 9293, 3.10.4: in SYN-RECEIVED the FIN waits until the handshake is over."""
    syn_received = 3
    w, a, b = pair(wire)
    one = a.stack.connect(B, 7002, 7001)
    other = b.stack.connect(A, 7001, 7002)
    w.run(until=lambda: one.view()["state"] == syn_received, limit_s=1)
    one.close()
    assert one.view()["state"] == syn_received
    w.run(until=other.at_end, limit_s=1)
    other.push(b"the other half is open")
    w.run(until=lambda: other.acked == other.pushed, limit_s=1)
    other.close()
    w.run(until=lambda: one.closed is not None and other.closed is not None, limit_s=1)
    assert (one.closed, other.closed) == (0, 0)
    assert bytes(one.received) == b"the other half is open"


# -- summed while it is copied


def test_checksum_is_verified_while_copying(wire):
    """What the device has not summed goes to its place in one pass, and only once it is right."""
    faults = Impairment(drop=0.02, duplicate=0.02, reorder=0.03, corrupt=0.05, seed=9)
    w, a, b = pair(wire, impair=faults)
    one, other = connect_flows(w, a, b)
    size = 400_000
    other.places = bytearray(size)
    w.run([FlowTransfer(one, other, size)])
    counters = b.stack.counters()
    assert counters["rx_drop_checksum"] > 5
    assert counters["rx_summed"] > 50
    assert other.received == pattern(0, size)
    placed = sum(x == y for x, y in zip(other.places, other.received))
    assert placed > counters["rx_summed"] * 1000


def open_to_places(wire):
    """(sender, receiver with places for more than a segment, the sender's next frame)"""
    w, a, b = pair(wire)
    one, other = connect_flows(w, a, b)
    w.run([FlowTransfer(one, other, 5000, close=False)])
    other.places = bytearray(b"\xee" * 7000)
    a.stack.take(), b.stack.take()
    one.push(b"x" * 1000)
    a.stack.flush()
    (frame,) = [wire for frame in a.stack.take() for wire in finish(frame, 0)]
    return one, other, frame


def changed(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 0x01]) + frame[at + 1 :]


TCP_AT, PAYLOAD_AT = 20, 52
HEADER_BYTES = {"sequence": 7, "acknowledgement": 11, "window": 15, "checksum": 17, "time": 27}


@pytest.mark.parametrize("at", [PAYLOAD_AT, PAYLOAD_AT + 999])
def test_damaged_segment_writes_only_bytes_still_expected(wire, at):
    one, other, frame = open_to_places(wire)
    other.stack.receive(changed(frame, at))
    other.stack.flush()
    assert (len(other.received), other.stack.take()) == (5000, [])
    assert other.places[:5000] == b"\xee" * 5000 and other.places[6000:] == b"\xee" * 1000
    assert other.stack.counters()["rx_drop_checksum"] == 1
    other.stack.receive(frame)
    assert other.received[5000:] == other.places[5000:6000] == b"x" * 1000
    assert other.stack.counters()["rx_summed"] == 1


@pytest.mark.parametrize("field", HEADER_BYTES)
def test_damaged_header_changes_no_state(wire, field):
    one, other, frame = open_to_places(wire)
    before = other.view()
    other.stack.receive(changed(frame, TCP_AT + HEADER_BYTES[field]))
    other.stack.flush()
    assert other.view() == before and other.stack.take() == []
    assert other.places[:5000] == b"\xee" * 5000 and other.places[6000:] == b"\xee" * 1000
    other.stack.receive(frame)
    assert other.received[5000:] == b"x" * 1000


def test_segment_too_large_for_buffer_is_summed_first(wire):
    one, other, frame = open_to_places(wire)
    other.places = bytearray(5999)
    other.stack.receive(frame)
    assert other.received[5000:] == b"x" * 1000 and other.places == bytes(5999)
    assert "rx_summed" not in other.stack.counters()
