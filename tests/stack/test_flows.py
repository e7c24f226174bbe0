# SPDX-License-Identifier: Apache-2.0
"""The stack as an engine drives it: references, bursts, offloads, frames in pieces."""

from __future__ import annotations

import errno

import pytest
from flow_pair import TSO, TX, A, B, pair

from harp.testing.device import FlowTransfer, connect_flows, finish
from harp.testing.frames import check_ipv4
from harp.testing.wire import Impairment, WireError


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
    """The part that the device took is not sent again, or the retransmission would never end."""
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
    """Nagle delays the short tail; without the pull each tail would wait for a delayed ACK."""
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
    """Flow overwrites what is acknowledged; with losses and duplicates no such byte may appear."""
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


def harp_flows(wire):
    """A wire, two flows of HARP hosts from A to B and two from B to A, and the payload lengths of
    B's segments. Devices merge segments."""
    said = []

    def impair(frame):
        segment = check_ipv4(frame)
        said.extend([len(segment.payload)] if segment.src == B else [])
        return [(0, frame)]

    w, a, b = pair(wire, offloads=TSO, device={"merge": 60_000}, impair=impair)
    there, back = connect_flows(w, a, b, 7000), connect_flows(w, a, b, 7001)[::-1]
    for flow in (*there, *back):
        flow.trust(5000)
    w.run(limit_s=0.01)
    return w, there, back, said


def test_ack_of_merged_frame_waits_if_harp_host_sends_too(wire):
    """The host's own data, on another connection, goes out first."""
    w, there, back, said = harp_flows(wire)
    for number in range(1, 6):
        back[0].push(bytes(1000))
        w.run(limit_s=0.01)
        said.clear()
        there[0].push(bytes(4000))
        w.run(until=lambda: len(there[1].received) == 4000 * number, limit_s=1)
        assert said == []
        back[0].push(bytes(1000))
        w.run(limit_s=0.01)
        assert said == [1000, 0]


def test_ack_of_merged_frame_is_not_deferred_on_receiver(wire):
    w, there, _, said = harp_flows(wire)
    for number in range(1, 6):
        said.clear()
        there[0].push(bytes(4000))
        w.run(until=lambda: len(there[1].received) == 4000 * number, limit_s=1)
        assert said == [0]


def test_each_out_of_order_segment_of_burst_is_acked(wire):
    """RFC 5681, 4.2, for a peer that is no HARP host. One of several ACKs may be lost."""
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
    ("authenticated", "shut", "answers"),
    [(False, False, 6), (False, True, 6), (True, False, 1)],
    ids=["another stack", "another stack that receives no more", "a HARP host"],
)
def test_burst_acks_differ_for_harp_and_other_peers(wire, authenticated, shut, answers):
    """RFC 5681, 4.2: of ten and a FIN in one burst. HARP hosts get one acknowledgement a burst."""
    w, a, b = pair(wire, initial_window=10, delayed_ack_us=40_000)
    one, other = connect_flows(w, a, b)
    if authenticated:
        other.trust(5000)
    if shut:
        other.close()
    w.run(limit_s=0.1)
    before = b.stack.counters().get("tcp_acks_out", 0)
    w.run([FlowTransfer(one, other, 10 * 1448)], limit_s=1)
    assert b.stack.counters()["tcp_acks_out"] - before == answers


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


def test_view_counts_only_unacknowledged_data(wire):
    """Neither the SYN nor the FIN is data: each has a sequence number of its own."""
    w, a, b = pair(wire)
    listener = b.stack.listen(7000)
    one = a.stack.connect(B, 7000)
    w.run(until=lambda: a.stack.counters().get("tcp_segments_out") == 1, limit_s=1)
    assert not one.established and one.view()["unacked"] == 0
    w.run(until=lambda: one.established and bool(listener.accepted), limit_s=1)
    one.push(b"last words")
    assert one.view()["unacked"] == 10
    one.close()
    w.run(until=one.drained, limit_s=1)
    assert one.view()["unacked"] == 0
