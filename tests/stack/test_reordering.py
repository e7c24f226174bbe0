# SPDX-License-Identifier: Apache-2.0
"""Reordering: RACK's window (RFC 8985, 6.2), and the undo of spurious reactions (RFC 3522, 3708,
5682)."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import payload
from harp.testing.flights import MSS, ack, dsack, resent, send_flight, stamped
from harp.testing.wire import pattern

DISORDER, LOSS = 1, 4  # Linux's TCP_CA_*

# The reordering window


def test_dsack_widens_rack_window(dialogue):
    """RFC 8985, 6.2, step 4: a path that is known to reorder gets time to do so."""
    d = dialogue(initial_window=20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 20)
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(0, (1, 6)))
    assert [i for _, i, _ in resent(d.drain()) if i == 0] == [0]
    d.send(ack(20), at=d.now + 5)
    d.send(dsack(20, 0), at=d.now + 50)
    d.ignore()
    c.send(pattern(20 * MSS, 10 * MSS))
    d.ignore()
    d.send(ack(20, (21, 26)), at=d.now + 50)
    again = resent(d.drain(until=d.now + 100))
    began = d.now - 100
    assert [i for _, i, _ in again if i < 30] == [20]
    # A quarter of the shortest round trip for a path that reorders, another for the report.
    assert again[0][0] - began == pytest.approx(25, abs=2), d.render()


def test_dsacks_of_one_round_trip_widen_rack_window_once(dialogue):
    """RFC 8985, 6.2, step 4: the window grows by a step a round trip, however many copies one
    wrong guess has made."""
    d = dialogue(initial_window=20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 20)
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(0, (10, 16)))
    assert [i for _, i, _ in resent(d.drain()) if i < 10] == list(range(6)), d.render()
    d.send(ack(20), at=d.now + 5)
    d.run(d.now + 50)
    for i in range(6):
        d.send(dsack(20, i))
    d.ignore()
    c.send(pattern(20 * MSS, 10 * MSS))
    d.ignore()
    d.send(ack(20, (21, 26)), at=d.now + 50)
    again = resent(d.drain(until=d.now + 100))
    began = d.now - 100
    assert [i for _, i, _ in again if i < 30] == [20]
    assert 10 <= again[0][0] - began <= 30, d.render()


def loss_found_after(d, c, acked, until=100):
    """Sends ten more segments, of which the first does not arrive; ms from there to its copy."""
    c.send(pattern(acked * MSS, 10 * MSS))
    d.ignore()
    d.send(ack(acked, (acked + 1, acked + 6)), at=d.now + 50)
    began = d.now
    again = [entry for entry in resent(d.drain(until=began + until)) if entry[1] < acked + 10]
    assert [i for _, i, _ in again] == [acked], d.render()
    return again[0][0] - began


def test_late_original_sets_rack_window_to_twice_its_delay(dialogue):
    """Without a spurious retransmission: data up to twice as late is not marked lost."""
    d = dialogue(initial_window=20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 20)
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(0, (1, 3)))
    d.send(ack(3), at=d.now + 9)
    assert resent(p for p in d.drain() if p[TCP].seq < 1 + 20 * MSS) == []
    d.send(ack(20))
    assert loss_found_after(d, c, 20) == pytest.approx(2 * 9, abs=1), d.render()


@pytest.mark.parametrize("late", [9, 45])
def test_late_original_after_copy_sets_rack_window_by_echo(dialogue, late):
    """The echo shows it a round trip before a DSACK. The window is one SRTT at most."""
    d = dialogue(initial_window=20, timestamps=1)
    c = d.open_passive(rtt=50, timestamps=True)
    mss = c.tcp_info()["snd_mss"]
    c.send(pattern(0, 30 * mss))
    first = d.drain()[0]
    d.run(d.now + 50)
    d.strict = False
    d.send(stamped(first, d, 0, (1, 6), mss=mss))
    assert [p for p in d.drain() if payload(p) and p[TCP].seq == 1]
    d.send(stamped(first, d, 6, mss=mss), at=d.now + late)
    d.ignore()
    began = d.now
    d.send(stamped(first, d, 6, (7, 12), mss=mss))
    window = min(2 * late, c.tcp_info()["rtt"] / 1000)
    again = [p for p in d.drain(until=began + 90) if payload(p) and p[TCP].seq == 1 + 6 * mss]
    assert [p.time - began for p in again] == [pytest.approx(window, abs=1)], d.render()


def test_late_originals_after_copies_do_not_accumulate(dialogue):
    """The lateness of each original counts, without the window that the earlier ones have set."""
    d = dialogue(initial_window=20, timestamps=1)
    c = d.open_passive(rtt=50, timestamps=True)
    mss = c.tcp_info()["snd_mss"]
    c.send(pattern(0, 30 * mss))
    first = d.drain()[0]
    d.run(d.now + 50)
    d.strict = False
    d.send(stamped(first, d, 0, (4, 12), mss=mss))
    copies = [p for p in d.drain() if payload(p) and p[TCP].seq < 1 + 4 * mss]
    assert len(copies) > 2, d.render()
    for n in range(1, 4):
        d.send(stamped(first, d, n, (4, 12), mss=mss), at=d.now + 1)
    d.send(stamped(first, d, 12, mss=mss), at=d.now + 1)
    d.ignore()
    began = d.now
    d.send(stamped(first, d, 12, (13, 18), mss=mss))
    again = [p for p in d.drain(until=began + 90) if payload(p) and p[TCP].seq == 1 + 12 * mss]
    assert [p.time - began for p in again] == [pytest.approx(50 / 4, abs=1)], d.render()


def assert_reordering_window_is_forgotten(d, c, acked, mss):
    """The third segment behind a hole shows the loss, as where nothing was ever reordered."""
    c.send(pattern(acked * mss, 10 * mss))
    later = d.drain()
    d.run(d.now + 50)
    d.send(stamped(later[0], d, acked, (acked + 1, acked + 4), mss=mss))
    assert [p for p in d.drain() if payload(p) and p[TCP].seq == 1 + acked * mss], d.render()


def test_lost_acks_do_not_widen_rack_window(dialogue):
    """It may have come long ago, and what told of it was lost."""
    d = dialogue(initial_window=20, timestamps=1)
    c = d.open_passive(rtt=50, timestamps=True)
    mss = c.tcp_info()["snd_mss"]
    c.send(pattern(0, 20 * mss))
    sent = d.drain()
    d.run(d.now + 50)
    d.strict = False
    d.send(stamped(sent[0], d, 0, (12, 15), mss=mss))
    copies = [p for p in d.drain() if payload(p) and p[TCP].seq < 1 + 12 * mss]
    assert 1 <= len(copies) < 12, d.render()
    d.send(stamped(copies[0], d, 20, mss=mss), at=d.now + 50)
    d.ignore()
    assert_reordering_window_is_forgotten(d, c, 20, mss)


def test_spurious_timeout_does_not_widen_rack_window(dialogue):
    """The ACK of an original comes soon after its retransmission, too, after a spurious timeout."""
    d = dialogue(rto_min_us=200_000, timestamps=1)
    c = d.open_passive(rtt=50, timestamps=True)
    mss = c.tcp_info()["snd_mss"]
    c.send(pattern(0, 10 * mss))
    first = d.drain()[0]
    (copy,) = [p for p in d.drain(until=d.now + 370) if p[TCP].seq == 1]
    assert d.now - copy.time < 50, d.render()  # the answer to the copy would take a round trip
    d.strict = False
    d.send(stamped(first, d, 10, mss=mss))
    d.ignore()
    assert_reordering_window_is_forgotten(d, c, 10, mss)


@pytest.mark.parametrize("learned", ["from a report", "from a hole"])
def test_widened_rack_window_shrinks_with_recoveries(dialogue, learned):
    """RFC 8985, 6.2, step 4: after sixteen recoveries the widened window is as it was; what was
    seen to come late fades with each."""
    d = dialogue(initial_window=20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 20)
    d.run(d.now + 50)
    d.strict = False
    if learned == "from a report":
        d.send(ack(0, (1, 6)))
        d.send(ack(20), at=d.now + 5)
        d.send(dsack(20, 0), at=d.now + 50)
    else:
        d.send(ack(0, (1, 3)))
        d.send(ack(3), at=d.now + 12)
        d.send(ack(20))
    d.ignore()
    waited = []
    for at in range(20, 20 + 2 * 18, 2):
        c.send(pattern(at * MSS, 2 * MSS))
        d.ignore()
        d.send(ack(at, (at + 1, at + 2)), at=d.now + 50)
        began = d.now
        (again,) = resent(d.drain(until=d.now + 60))
        assert again[1] == at
        waited.append(round(again[0] - began))
        d.send(ack(at + 2), at=again[0] + 50)
        d.ignore()
    if learned == "from a report":
        assert waited == [25] * 16 + [12] * 2
    else:
        assert waited[0] == 24 and waited[3] > 12 and waited[8:] == [12] * 10


# Reactions taken back


def test_dsack_undoes_spurious_fast_recovery(dialogue):
    """RFC 3708: a DSACK shows that everything had arrived; the window comes back."""
    d = dialogue(initial_window=20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 20)
    before = c.tcp_info()["snd_cwnd"]
    d.run(d.now + 50)
    d.strict = False
    # Segment 0 is late, not lost: its retransmission crosses the acknowledgement.
    d.send(ack(0, (1, 6)))
    assert [i for _, i, _ in resent(d.drain()) if i == 0] == [0]
    assert c.tcp_info()["ca_state"] != 0
    d.send(ack(20), at=d.now + 5)
    d.ignore()
    d.send(dsack(20, 0), at=d.now + 50)
    assert c.tcp_info()["snd_cwnd"] >= before


def test_undo_requires_dsack_for_every_retransmission(dialogue):
    """RFC 3708, 3: the reduction is taken back only when every retransmission was spurious."""
    d = dialogue(initial_window=20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 20)
    before = c.tcp_info()["snd_cwnd"]
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(0, (1, 2)))
    d.send(ack(0, (3, 8), (1, 2)))
    d.send(ack(0, (3, 10), (1, 2)))
    assert sorted(i for _, i, _ in resent(d.drain()) if i < 20) == [0, 2]
    d.send(ack(20), at=d.now + 5)
    d.send(dsack(20, 0), at=d.now + 50)
    assert c.tcp_info()["snd_cwnd"] < before
    d.send(dsack(20, 2))
    assert c.tcp_info()["snd_cwnd"] >= before


def test_ack_of_original_marks_no_loss_in_rack(dialogue):
    """RFC 8985, 6.2, step 2: an acknowledgement sooner than any round trip is not the copy's."""
    d = dialogue()
    c = d.open_passive(rtt=50)
    send_flight(d, c)
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(0, (1, 4)))
    assert 0 in [i for _, i, _ in resent(d.drain())]
    d.send(ack(4), at=d.now + 2)
    assert [i for _, i, _ in resent(d.drain(until=d.now + 20)) if i < 10] == []


def test_dsacks_undo_spurious_timeout(dialogue):
    d = dialogue(rto_min_us=200_000, sack=1)
    c = d.open_passive(rtt=20)
    send_flight(d, c)
    before = c.tcp_info()["snd_cwnd"]
    again = resent(d.drain(until=d.now + 300))
    assert [i for _, i, _ in again if i == 0] == [0]
    d.strict = False
    # The path was only slow: everything arrives, and the copies are reported.
    copies = sorted({i for _, i, _ in again})
    d.send(ack(10))
    d.ignore()
    for i in copies:
        d.send(dsack(10, int(i)), at=d.now + 1)
    assert c.tcp_info()["snd_cwnd"] >= before
    assert c.tcp_info()["ca_state"] == 0


def test_sack_of_unretransmitted_data_undoes_timeout(dialogue):
    """RFC 5682, with SACK: it was in flight all the time, so the timeout was spurious."""
    d = dialogue(rto_min_us=200_000, sack=1)
    c = d.open_passive(rtt=20)
    send_flight(d, c)
    before = c.tcp_info()["snd_cwnd"]
    d.drain(until=d.now + 270)
    assert c.tcp_info()["ca_state"] == LOSS
    d.strict = False
    d.send(ack(0, (4, 5)))
    assert c.tcp_info()["ca_state"] == DISORDER
    assert c.tcp_info()["snd_cwnd"] >= before


def test_echo_within_shared_tick_is_not_taken_for_copy(dialogue):
    """The echo fits the copy, but no answer comes sooner than the shortest round trip."""
    d = dialogue(timestamps=1)
    c = d.open_passive(rtt=50, timestamps=True)
    mss = c.tcp_info()["snd_mss"]
    c.send(pattern(0, 10 * mss))
    first = d.drain()[0]
    d.run(d.now + 50)
    d.strict = False
    d.send(stamped(first, d, 0, (1, 4), mss=mss))
    (copy,) = [p for p in d.drain() if payload(p) and p[TCP].seq == 1]
    d.send(stamped(copy, d, 4, mss=mss), at=d.now + 2)
    again = [p for p in d.drain(until=d.now + 20) if payload(p)]
    assert [p for p in again if p[TCP].seq < 1 + 10 * mss] == []


@pytest.mark.parametrize("which", ["first", "copy"])
@pytest.mark.parametrize("sack", [0, 1])
def test_eifel_detects_spurious_timeout(dialogue, which, sack):
    """RFC 3522, Eifel: the ACK of the original shows that the timeout was spurious."""
    d = dialogue(rto_min_us=200_000, timestamps=1, sack=sack)
    c = d.open_passive(rtt=20, sack=bool(sack), timestamps=True)
    mss = c.tcp_info()["snd_mss"]
    c.send(pattern(0, 10 * mss))
    first = d.drain()[0]
    before = c.tcp_info()["snd_cwnd"]
    sent = [p for p in d.drain(until=d.now + 270) if p[TCP].seq == 1]
    assert len(sent) == 1 and c.tcp_info()["ca_state"] != 0
    d.strict = False
    d.send(stamped(first if which == "first" else sent[0], d, 1, mss=mss))
    again = [p for p in d.drain() if payload(p)]
    spurious = which == "first"
    assert (c.tcp_info()["ca_state"] == 0) == spurious
    assert (c.tcp_info()["snd_cwnd"] >= before) == spurious
    assert bool(again) != spurious  # the rest is on its way, or lost too


@pytest.mark.parametrize("which", ["first", "copy"])
def test_eifel_detects_spurious_fast_retransmit(dialogue, which):
    d = dialogue(initial_window=20, timestamps=1)
    c = d.open_passive(rtt=50, timestamps=True)
    mss = c.tcp_info()["snd_mss"]
    c.send(pattern(0, 20 * mss))
    first = d.drain()[0]
    before = c.tcp_info()["snd_cwnd"]
    d.run(d.now + 50)
    d.strict = False
    d.send(stamped(first, d, 0, (1, 6), mss=mss))
    copies = [p for p in d.drain() if payload(p) and p[TCP].seq == 1]
    assert len(copies) == 1 and c.tcp_info()["ca_state"] != 0
    d.send(stamped(first if which == "first" else copies[0], d, 6, mss=mss), at=d.now + 5)
    assert (c.tcp_info()["ca_state"] == 0) == (which == "first")
    assert (c.tcp_info()["snd_cwnd"] >= before) == (which == "first")


@pytest.mark.parametrize(
    "reported, later, back",
    [(0, 5, True), (21, 5, False), (0, 30, False)],
    ids=["of the recovery", "of a later flight", "long after"],
)
def test_dsack_soon_after_recovery_still_undoes_it(dialogue, reported, later, back):
    """An original that was far behind its copy; the report comes a round trip after recovery."""
    d = dialogue(initial_window=20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 20)
    before = c.tcp_info()["snd_cwnd"]
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(0, (1, 6)))
    d.send(ack(20), at=d.now + 5)
    d.ignore()
    for acked in range(20, 20 + later, 5):
        c.send(pattern(acked * MSS, 5 * MSS))
        d.ignore()
        d.send(ack(acked + 5), at=d.now + 50)
    slowed = c.tcp_info()["snd_cwnd"]
    assert slowed < before
    d.send(dsack(20 + later, reported))
    assert c.tcp_info()["snd_cwnd"] == (before if back else slowed)


def test_dsack_of_previous_recovery_undoes_nothing(dialogue):
    d = dialogue(initial_window=20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 20)
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(0, (1, 6)))
    d.send(ack(20), at=d.now + 50)
    d.ignore()
    c.send(pattern(20 * MSS, 10 * MSS))
    d.ignore()
    d.send(ack(20, (21, 26)), at=d.now + 50)
    assert 20 in [i for _, i, _ in resent(d.drain())]
    d.send(ack(20, (0, 1), (21, 26)))
    assert c.tcp_info()["ca_state"] != 0
