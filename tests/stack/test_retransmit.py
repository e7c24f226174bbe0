# SPDX-License-Identifier: Apache-2.0
"""Retransmission of lost data: RFC 6298, 5681, 6582, 6675, 8985."""

from __future__ import annotations

import errno

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import Sink, payload
from harp.testing.flights import MSS, ack, numbers, resent, send_flight, seq
from harp.testing.wire import pattern

# Fast retransmission


def test_three_sacked_segments_trigger_fast_retransmit(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=50)
    send_flight(d, c)
    d.send(ack(0, (1, 2)), at=d.now + 50)
    d.send(ack(0, (1, 3)))
    d.strict = False
    d.send(ack(0, (1, 4)))
    first = [p for p in d.drain() if p[TCP].seq == seq(0)]
    assert len(first) == 1, d.render()
    assert payload(first[0]) == pattern(0, MSS)
    assert d.now == 100


def test_newreno_partial_ack_retransmits_next_hole(dialogue):
    """RFC 6582, 3.2: NewReno."""
    d = dialogue(sack=0)
    c = d.open_passive(sack=False, rtt=50)
    send_flight(d, c)
    d.run(d.now + 50)
    d.strict = False
    for _ in range(3):
        d.send(ack(0))
    d.ignore()
    d.send(ack(4), at=d.now + 50)
    assert [p for p in d.drain() if p[TCP].seq == seq(4)], d.render()


def test_acks_with_data_or_new_window_are_not_duplicates(dialogue):
    """RFC 5681, 2: a duplicate acknowledgement has neither."""
    d = dialogue(sack=0, delayed_ack_us=40_000)
    c = d.open_passive(sack=False, rtt=50)
    send_flight(d, c)
    d.run(d.now + 10)
    d.strict = False
    for i in range(5):
        d.send(TCP(flags="A", seq=1, ack=1, window=60_000 + i))
    for i in range(5):
        d.send(TCP(flags="PA", seq=1 + i, ack=1, window=60_004) / b"x")
    assert not [p for p in d.drain() if payload(p) and p[TCP].seq == seq(0)]


def test_several_holes_are_retransmitted_in_one_round_trip(dialogue):
    d = dialogue(initial_window=20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 20)
    d.run(d.now + 50)
    d.strict = False
    # Segments 0, 4 and 8 are lost; the rest arrives.
    d.send(ack(0, (1, 4)))
    d.send(ack(0, (5, 8), (1, 4)))
    for end in range(10, 21):
        d.send(ack(0, (9, end), (5, 8), (1, 4)))
    starts = sorted(i for _, i, _ in resent(d.drain(until=d.now + 40)) if i < 20)
    assert starts == [0, 4, 8], d.render()


def test_retransmission_in_same_tick_counts_as_later_in_rack(dialogue):
    """RFC 8985, 6.2: at the same time the lower sequence counts as sent first, but a copy is later
    than the new data that the same tick let out before it."""
    d = dialogue(sndbuf=1 << 20)
    c = d.open_passive(rtt=50)
    c.send(pattern(0, 14 * MSS))
    assert len(d.drain()) == 10
    d.run(d.now + 50)
    d.strict = False
    for end in (2, 3, 4):  # some new ones, then the copy
        d.send(ack(0, (1, end)))
    assert numbers(d.drain()) == [10, 11, 0]
    d.run(d.now + 50)
    d.send(ack(0, (1, 12)))
    assert [p for p in d.drain(until=d.now + 20) if payload(p) and p[TCP].seq == 1] == []


def test_sacked_data_is_not_retransmitted(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=50)
    send_flight(d, c)
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(0, (1, 9)))
    again = [i for _, i, _ in resent(d.drain(until=d.now + 190))]
    assert 0 in again
    assert not [i for i in again if 1 <= i < 9]


def test_lost_retransmission_is_retransmitted(dialogue):
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    send_flight(d, c)
    d.run(d.now + 20)
    d.strict = False
    d.send(ack(0, (1, 10)))
    assert [i for _, i, _ in resent(d.drain()) if i == 0] == [0]
    later = resent(d.drain(until=d.now + 2000))
    assert [i for _, i, _ in later][0] == 0


def test_full_ack_ends_recovery(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=50)
    send_flight(d, c)
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(0, (1, 10)))
    d.ignore()
    d.send(ack(10), at=d.now + 50)
    d.ignore()
    d.silence(during=10_000)


def test_limited_transmit_without_sack(dialogue):
    """RFC 3042: a new segment for each of the first two duplicates, so that a third may come."""
    d = dialogue(sack=0, initial_window=4)
    c = d.open_passive(sack=False, rtt=50)
    c.send(pattern(0, 20 * MSS))
    assert len(d.drain()) == 4
    d.run(d.now + 50)
    d.send(ack(0))
    d.expect(TCP(seq=seq(4)), length=MSS)
    d.send(ack(0))
    d.expect(TCP(seq=seq(5)), length=MSS)
    d.send(ack(0))
    assert resent(d.drain())[0][1] == 0


def test_duplicates_of_spurious_timeout_start_no_recovery(dialogue):
    """RFC 6582, 3.2 (2): the acknowledgement must cover more than what had been sent when the
    timeout fired. The duplicates answer the needless retransmissions."""
    d = dialogue(sack=0, rto_min_us=200_000)
    c = d.open_passive(sack=False, rtt=50)
    send_flight(d, c)
    assert numbers(d.drain(until=d.now + 400)) == [0]
    d.strict = False
    for n in (1, 3, 10):
        d.send(ack(n))
    d.ignore()
    c.send(pattern(10 * MSS, 10 * MSS))
    d.ignore()
    before = c.tcp_info()["total_retrans"]
    for _ in range(4):
        d.send(ack(10))
    assert 10 not in numbers(d.drain())
    assert c.tcp_info()["total_retrans"] == before
    d.send(ack(11))
    for _ in range(3):
        d.send(ack(11))
    assert 11 in numbers(d.drain())


# The tail


def test_tail_loss_probe_precedes_timeout(dialogue):
    """RFC 8985, 7.2: after two round trips, not after an RTO of seconds."""
    d = dialogue(rto_min_us=1_000_000)
    c = d.open_passive(rtt=50)
    send_flight(d, c)
    d.send(ack(8), at=d.now + 50)
    probe = resent(d.drain(until=d.now + 900))
    assert len(probe) == 1, d.render()
    assert probe[0][1] == 9
    assert 100 + 2 * 50 - 5 <= probe[0][0] <= 100 + 2 * 50 + 260


def test_ack_of_tail_loss_probe_starts_recovery(dialogue):
    d = dialogue(rto_min_us=1_000_000)
    c = d.open_passive(rtt=50)
    send_flight(d, c)
    d.send(ack(5), at=d.now + 50)
    probe = d.drain(until=d.now + 400)
    assert [i for _, i, _ in resent(probe)] == [9]
    d.strict = False
    d.send(ack(5, (9, 10)), at=d.now + 50)
    began = d.now
    have = {9}
    for _ in range(6):
        have |= {int(i) for _, i, _ in resent(d.drain(until=d.now + 50))}
        done = next(i for i in range(5, 11) if i not in have)
        d.send(ack(done, (9, 10)) if done < 9 else ack(10))
        if done == 10:
            break
    assert done == 10, d.render()
    assert d.now - began <= 4 * 50  # window by window, and no timeout
    before = c.tcp_info()["snd_cwnd"]
    c.send(pattern(10 * MSS, MSS))
    d.send(ack(11), at=d.now + 50)
    assert c.tcp_info()["snd_cwnd"] >= before  # one loss is one reduction


def test_loss_repaired_by_tail_loss_probe_reduces_cwnd(dialogue):
    """RFC 8985, 7.4: without a DSACK the probe has repaired a loss, and the sender slows down."""
    d = dialogue(rto_min_us=1_000_000)
    c = d.open_passive(rtt=50)
    send_flight(d, c)
    d.send(ack(9), at=d.now + 50)
    before = c.tcp_info()["snd_cwnd"]
    assert [i for _, i, _ in resent(d.drain(until=d.now + 400))] == [9]
    d.send(ack(10))
    c.send(pattern(10 * MSS, MSS))
    d.expect(TCP(seq=seq(10)), length=MSS)
    d.send(ack(11), at=d.now + 50)
    assert c.tcp_info()["snd_cwnd"] <= 0.8 * before


def test_tail_loss_probe_prefers_new_data(dialogue):
    """RFC 8985, 7.3: it reveals the same holes, and is never in vain."""
    d = dialogue(rto_min_us=1_000_000)
    c = d.open_passive(rtt=50)
    c.send(pattern(0, 20 * MSS))
    for i in range(10):
        d.expect(TCP(seq=seq(i)), length=MSS)
    probe = resent(d.drain(until=d.now + 400))
    assert [(i, length) for _, i, length in probe] == [(10, MSS)], d.render()
    d.strict = False
    d.send(ack(0, (10, 11)), at=d.now + 50)
    assert [i for _, i, _ in resent(d.drain()) if i == 0] == [0]


def test_tail_loss_probe_without_window_resends_last_segment(dialogue):
    d = dialogue(rto_min_us=1_000_000)
    c = d.open_passive(rtt=50, window=10 * MSS, wscale=0)
    c.send(pattern(0, 20 * MSS))
    for i in range(10):
        d.expect(TCP(seq=seq(i)), length=MSS)
    assert [i for _, i, _ in resent(d.drain(until=d.now + 400))] == [9], d.render()


def test_tail_loss_probe_after_fin_resends_fin(dialogue):
    d = dialogue(rto_min_us=1_000_000)
    c = d.open_passive(rtt=50)
    c.send(pattern(0, 2 * MSS))
    c.close()
    d.expect(TCP(seq=seq(0)), length=MSS)
    d.expect(TCP(flags="PA", seq=seq(1)), length=MSS)
    d.expect(TCP(flags="FA", seq=seq(2)))
    probe = d.drain(until=d.now + 400)
    assert [(p[TCP].seq, len(payload(p))) for p in probe] == [(seq(2), 0)], d.render()


def test_no_tail_loss_probe_when_all_data_is_acked(dialogue):
    d = dialogue()
    c = d.open_passive(rtt=50)
    send_flight(d, c)
    d.send(ack(10), at=d.now + 50)
    d.silence(during=100_000)


# The timeout


def first_timeouts(d, until):
    """Times of retransmissions of segment 0, a tail probe left out."""
    return [t for t, i, _ in resent(d.drain(until=until)) if i == 0]


def test_rto_backs_off_exponentially(dialogue):
    """RFC 6298, 5.5: twice as long each time, up to the bound."""
    d = dialogue(rto_min_us=200_000, rto_max_us=5_000_000)
    c = d.open_passive(rtt=20)
    c.send(b"x" * MSS)
    d.expect(TCP(seq=1), length=MSS)
    times = first_timeouts(d, d.now + 30_000)
    pauses = [b - a for a, b in zip(times, times[1:])]
    # A tail probe may come first; it does not count.
    assert times[0] - 20 <= 250
    grown = pauses[1:5]
    assert [round(b / a, 1) for a, b in zip(grown, grown[1:]) if b < 4900] == [2.0] * sum(
        b < 4900 for b in grown[1:]
    ), pauses
    assert max(pauses) == pytest.approx(5000, abs=20)


def test_rtt_sample_ends_rto_backoff(dialogue):
    """RFC 6298, 5.7: the acknowledgement of a copy is none, and the backoff stays."""
    d = dialogue(rto_min_us=200_000, sack=0)
    c = d.open_passive(rtt=20, sack=False)
    c.send(b"x" * MSS)
    assert len(first_timeouts(d, d.now + 2000)) >= 3
    d.send(ack(1))
    c.send(pattern(MSS, MSS))
    d.expect(TCP(seq=seq(1)), length=MSS)
    d.silence(during=230)
    d.send(ack(2))
    c.send(pattern(2 * MSS, MSS))
    d.expect(TCP(seq=seq(2)), length=MSS)
    sent = d.now
    d.expect(TCP(seq=seq(2)), length=MSS, within=500)
    assert d.now - sent <= 1000 * c.tcp_info()["rto"]


def test_constant_rtt_causes_no_timeout(dialogue):
    """The floor is the least that stands for the variation."""
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=400)
    for i in range(120):  # until no variation is left
        c.send(pattern(i * MSS, MSS))
        d.expect(TCP(seq=seq(i)), length=MSS)
        d.send(ack(i + 1), at=d.now + 400)
    assert c.tcp_info()["total_retrans"] == 0


def test_retransmission_of_first_segment_restarts_rto(dialogue):
    """Where round trips hardly vary, one more and the time until the loss showed exceed it."""
    d = dialogue(rto_min_us=5_000)
    c = d.open_passive(rtt=50)
    for i in range(60):  # until hardly any variation is left
        c.send(pattern(i * MSS, MSS))
        d.expect(TCP(seq=seq(i)), length=MSS)
        d.send(ack(i + 1), at=d.now + 50)
    d.strict = False
    c.send(pattern(60 * MSS, 5 * MSS))
    d.drain()
    d.run(d.now + 50)
    for late in range(2, 5):
        d.send(ack(60, (61, 60 + late)))
    assert [i for _, i, _ in resent(d.drain(until=d.now + 50))] == [60]


def test_rto_respects_minimum(dialogue):
    d = dialogue(rto_min_us=300_000)
    c = d.open_passive(rtt=1)
    c.send(b"x" * (20 * MSS))
    d.ignore()
    sent = d.now
    times = [t for t, i, _ in resent(d.drain(until=sent + 2000)) if i == 0]
    assert times[0] - sent >= 299


def test_first_rto_follows_first_rtt_sample(dialogue):
    """RFC 6298, 2.2: after the first sample R, RTO = R + 4 R / 2 = 3 R."""
    d = dialogue(rto_min_us=5_000, initial_window=10)
    c = d.open_passive(rtt=300)
    assert c.tcp_info()["rto"] == pytest.approx(900_000, rel=0.05)
    assert c.tcp_info()["rtt"] == pytest.approx(300_000, rel=0.02)


def test_srtt_and_rttvar_follow_rfc_6298(dialogue):
    """RFC 6298, 2.3: SRTT = 7/8 SRTT + 1/8 R'."""
    d = dialogue(rto_min_us=5_000)
    c = d.open_passive(rtt=80)
    c.send(b"x")
    d.expect(TCP(seq=1) / b"x")
    d.send(TCP(seq=1, ack=2), at=d.now + 160)
    info = c.tcp_info()
    assert info["rtt"] == pytest.approx(90_000, rel=0.03)
    # RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R'|, RTO = SRTT + 4 RTTVAR.
    assert info["rttvar"] == pytest.approx(50_000, rel=0.03)
    assert info["rto"] == pytest.approx(290_000, rel=0.03)


def test_no_rtt_sample_from_retransmission_by_karn(dialogue):
    """RFC 6298, 3: no sample from what was sent twice; the backoff stays until a new one."""
    d = dialogue(rto_min_us=200_000, timestamps=0)
    c = d.open_passive(rtt=50)
    before = c.tcp_info()["rtt"]
    c.send(b"x")
    d.expect(TCP(seq=1) / b"x")
    d.ignore(until=d.now + 1500)
    d.send(TCP(seq=1, ack=2))
    assert c.tcp_info()["rtt"] == before


def test_no_rtt_sample_from_sacked_retransmission(dialogue):
    d = dialogue(initial_window=20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 20)
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(0, (2, 12)))
    assert 1 in [i for _, i, _ in resent(d.drain())]
    before = c.tcp_info()["rtt"]
    d.send(ack(0, (1, 12)), at=d.now + 10)
    assert c.tcp_info()["rtt"] == before


def test_no_rtt_sample_from_data_beyond_filled_hole(dialogue):
    """Data beyond the hole arrived long before the retransmission let it be acknowledged."""
    d = dialogue(initial_window=20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 20)
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(0, (1, 4)))
    d.ignore()
    before = c.tcp_info()["rtt"]
    d.send(ack(10), at=d.now + 90)
    assert c.tcp_info()["rtt"] == before


def test_timeout_reduces_cwnd_to_loss_window(dialogue):
    """RFC 5681, 3.1: the loss window is one segment, ssthresh half of what flew."""
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    send_flight(d, c)
    sent = d.drain(until=d.now + 1000)
    assert sent
    info = c.tcp_info()
    assert info["snd_cwnd"] <= 2
    assert 2 <= info["snd_ssthresh"] <= 8


def test_timeout_retransmits_earliest_segment_first(dialogue):
    """RFC 6298, 5.4: also before others that were lost earlier and have waited since."""
    d = dialogue()
    c = d.open_passive(rtt=50)
    send_flight(d, c)
    d.send(ack(0, (7, 10)), at=d.now + 50)
    d.strict = False
    first = resent(d.drain(until=d.now + 5))
    assert first[0][1] == 0
    assert sum(size for _, _, size in first) < 7 * MSS
    assert resent(d.drain(until=d.now + 2000))[0][1] == 0


def test_all_data_is_recovered_after_timeout(dialogue):
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    send_flight(d, c)
    d.strict = False
    sink = Sink()
    for _ in range(60):
        if sink.take(d.drain(until=d.now + 100)):
            d.send(TCP(flags="A", seq=1, ack=sink.ack))
        if len(sink.data) == 10 * MSS:
            break
    assert sink.data == pattern(0, 10 * MSS)
    d.ignore()
    d.silence(during=10_000)


def test_duplicate_acks_do_not_restart_rto(dialogue):
    """RFC 6298, 5.3 speaks of new data; duplicates must not postpone the timeout for ever."""
    d = dialogue(rto_min_us=200_000, sack=0)
    c = d.open_passive(sack=False, rtt=20)
    c.send(b"x" * MSS)
    d.expect(TCP(seq=1), length=MSS)
    began = d.now
    d.strict = False
    for i in range(1, 20):
        d.send(TCP(flags="A", seq=1, ack=1, window=60_000 + i), at=began + 50 * i)
    times = [t - began for t, i, _ in resent(d.drain()) if i == 0]
    assert times and times[0] <= 300


def test_delayed_ack_timer_does_not_fire_rto(dialogue):
    """What is due is one timer, not all of its connection's (VPP #3385)."""
    d = dialogue(rto_min_us=200_000, delayed_ack_us=40_000)
    c = d.open_passive(rtt=20)
    c.send(b"x")
    d.expect(TCP(seq=1) / b"x")
    sent = d.now
    d.send(TCP(flags="A", seq=1, ack=1) / b"y", at=sent + 50)
    d.expect(TCP(flags="A", seq=2, ack=2), at=sent + 90)
    d.silence(until=sent + 210)
    d.expect(TCP(seq=1) / b"x", at=sent + 220)


def test_new_acks_restart_rto(dialogue):
    """RFC 6298, 5.3: as long as new data is acknowledged there is no timeout."""
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=120)
    send_flight(d, c)
    for i in range(1, 10):
        d.send(ack(i), at=d.now + 100)
        assert [t for t in resent(d.drain()) if t[1] < i] == []


def test_sack_reneging_is_survived(dialogue):
    """RFC 2018, 8: after a timeout what was sacked counts as lost too."""
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    send_flight(d, c)
    d.run(d.now + 20)
    d.strict = False
    d.send(ack(0, (1, 10)))
    d.ignore()
    d.send(ack(1), at=d.now + 20)  # the peer has thrown the rest away
    have = 1
    for _ in range(100):
        for packet in d.drain(until=d.now + 100):
            if payload(packet) and packet[TCP].seq == seq(have):
                have += 1
        d.send(ack(have))
        if have == 10:
            break
    assert have == 10, d.render()


@pytest.mark.parametrize(
    "edges",
    [
        (seq(20), seq(30)),  # beyond what was sent
        (seq(3), seq(1)),  # the wrong way round
        (seq(2), seq(2)),  # empty
        (-5000, -100),  # long acknowledged
        (-(1 << 20), seq(5)),  # half of it acknowledged
        (seq(1), seq(500)),  # reaches beyond what was sent
    ],
    ids=str,
)
def test_invalid_sack_blocks_are_ignored(dialogue, edges):
    d = dialogue()
    c = d.open_passive(rtt=50)
    send_flight(d, c)
    d.run(d.now + 50)
    d.strict = False
    for _ in range(4):
        options = [("NOP", None), ("NOP", None), ("SAck", edges)]
        d.send(TCP(flags="A", seq=1, ack=1, options=options))
    d.ignore()
    d.send(ack(10))
    d.ignore()
    d.silence(during=10_000)
    c.send(b"more")
    d.expect(TCP(seq=seq(10)) / b"more")


def test_sack_of_unsent_data_does_not_widen_rack_window(dialogue):
    """A forged block must not pass for reordering, and make later losses wait."""
    d = dialogue(initial_window=20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 10)
    d.run(d.now + 50)
    d.send(ack(0, (30, 40)))
    d.send(ack(0, (5, 15)))
    d.send(ack(10))
    c.send(pattern(0, 10 * MSS))
    assert len(d.drain()) == 10
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(10, (11, 14)))
    assert [i for _, i, _ in resent(d.drain()) if i == 10] == [10]


def test_silent_peer_gives_etimedout_after_r2(dialogue):
    """RFC 9293, 3.8.3: R2, at least 100 s; then the application is told."""
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    c.send(b"x")
    d.ignore(until=99_000)
    assert c.error() == 0
    d.ignore(until=3_600_000)
    assert c.error() == errno.ETIMEDOUT
    d.silence(during=100_000)


def test_tcp_info_counts_retransmissions(dialogue):
    d = dialogue(rto_min_us=200_000)
    c = d.open_passive(rtt=20)
    assert c.tcp_info()["total_retrans"] == 0
    c.send(b"x")
    again = d.drain(until=d.now + 3000)
    assert c.tcp_info()["total_retrans"] == len(again) - 1 > 2


def test_retransmission_carries_current_ack(dialogue):
    d = dialogue(rto_min_us=200_000, delayed_ack_us=0)
    c = d.open_passive(rtt=20)
    c.send(b"x")
    d.expect(TCP(seq=1, ack=1) / b"x")
    d.send(TCP(seq=1, ack=1) / b"hello")
    d.expect(TCP(flags="A", seq=2, ack=6))
    d.expect(TCP(seq=1, ack=6) / b"x", within=2000)
