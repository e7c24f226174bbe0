# SPDX-License-Identifier: Apache-2.0
"""The congestion window: RFC 5681, 6928, 9438 (CUBIC)."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import Sink, make_stack, payload
from harp.testing.flights import ack, numbers, send_flight
from harp.testing.wire import Transfer, connect_pair

MSS = 1460


def flight(d):
    return [p for p in d.drain() if payload(p)]


@pytest.mark.parametrize("segments", [1, 2, 10, 30])
def test_initial_window_bounds_first_flight(dialogue, segments):
    d = dialogue(initial_window=segments, sndbuf=1 << 20)
    c = d.open_passive(rtt=50)
    c.send(b"x" * 100 * MSS)
    assert len(flight(d)) == segments


@pytest.mark.parametrize("active", [False, True])
def test_lost_syn_reduces_initial_window_to_one_segment(dialogue, active):
    """RFC 6928, 2 and RFC 5681, 3.1: then one segment begins."""
    d = dialogue(initial_window=10, rto_initial_us=1_000_000)
    if active:
        c = d.connect(80)
        d.expect(TCP(flags="S", seq=0))
        d.expect(TCP(flags="S", seq=0), within=1100)
        d.send(TCP(flags="SA", seq=0, ack=1, options=[("MSS", MSS)]))
        d.expect(TCP(flags="A", seq=1, ack=1))
    else:
        listener = d.listen(80)
        d.send(TCP(flags="S", seq=0, options=[("MSS", MSS)]))
        d.expect(TCP(flags="SA", seq=0, ack=1))
        d.expect(TCP(flags="SA", seq=0, ack=1), within=1100)
        d.send(TCP(flags="A", seq=1, ack=1))
        c = d.accept(listener)
    c.send(b"x" * 20 * MSS)
    assert len(flight(d)) == 1


def test_slow_start_doubles_each_round_trip(dialogue):
    d = dialogue(initial_window=4, sndbuf=1 << 20, window_scale=0)
    c = d.open_passive(rtt=50, wscale=7, window=60_000)
    c.send(b"x" * 150 * MSS)
    sizes, at = [], 1
    for _ in range(5):
        packets = flight(d)
        sizes.append(len(packets))
        d.run(d.now + 50)
        d.strict = False
        for packet in packets:
            at = packet[TCP].seq + len(payload(packet))
            d.send(TCP(flags="A", seq=1, ack=at, window=60_000))
    assert sizes[0] == 4
    for before, after in zip(sizes, sizes[1:]):
        assert 1.5 * before <= after <= 2 * before + 1, sizes


def test_unused_cwnd_does_not_grow(dialogue):
    """RFC 7661: what was never in use has proven nothing."""
    d = dialogue(initial_window=10)
    c = d.open_passive(rtt=50)
    for i in range(50):
        c.send(b"x" * MSS)
        d.expect(TCP(seq=1 + MSS * i), length=MSS)
        d.send(TCP(flags="A", seq=1, ack=1 + MSS * (i + 1)), at=d.now + 50)
    assert c.tcp_info()["snd_cwnd"] <= 15


def test_ack_division_does_not_grow_cwnd(dialogue):
    """RFC 3465, and Savage's ACK division: growth counts bytes, not acknowledgements."""
    d = dialogue(initial_window=4, sndbuf=1 << 20)
    c = d.open_passive(rtt=50)
    c.send(b"x" * 60 * MSS)
    flight(d)
    d.run(d.now + 50)
    d.strict = False
    for part in range(1, 101):
        d.send(TCP(flags="A", seq=1, ack=1 + MSS * part // 100))
    assert c.tcp_info()["snd_cwnd"] <= 6


def end_of(packet):
    return packet[TCP].seq + len(payload(packet))


def lose_one(d, c, cwnd=20):
    """Brings the window to about cwnd segments, then loses one.

    Returns the info before, and the end of what the peer has behind the hole.
    """
    sink = Sink()
    d.strict = False
    c.send(b"x" * 400 * MSS)
    while c.tcp_info()["snd_cwnd"] < cwnd:
        sink.take(d.drain(until=d.now + 50))
        d.send(TCP(flags="A", seq=1, ack=sink.ack, window=60_000))
    packets = [p for p in d.drain() if payload(p)]
    before = c.tcp_info()
    first, last = packets[0][TCP].seq, end_of(packets[-1])
    d.run(d.now + 50)
    block = [("NOP", None), ("NOP", None), ("SAck", (first + MSS, last))]
    d.send(TCP(flags="A", seq=1, ack=first, window=60_000, options=block))
    return before, last


def test_loss_reduces_ssthresh_by_cubic_beta(dialogue):
    """RFC 9438, 4.6: beta is 0.7."""
    d = dialogue(sndbuf=1 << 20, window_scale=0)
    c = d.open_passive(rtt=50, wscale=4, window=60_000)
    before, _ = lose_one(d, c)
    after = c.tcp_info()
    assert after["snd_ssthresh"] == pytest.approx(0.7 * before["snd_cwnd"], abs=2)


def test_several_losses_in_one_window_cost_one_reduction(dialogue):
    d = dialogue(initial_window=20, sndbuf=1 << 20)
    c = d.open_passive(rtt=50)
    c.send(b"x" * 60 * MSS)
    assert len(flight(d)) == 20
    d.run(d.now + 50)
    d.strict = False
    edges: list[int] = []
    for first, end in ((1, 5), (6, 10), (11, 20)):  # three holes, one after the other
        edges = [1 + first * MSS, 1 + end * MSS, *edges]
        block = [("NOP", None), ("NOP", None), ("SAck", tuple(edges))]
        d.send(TCP(flags="A", seq=1, ack=1, options=block))
        d.ignore()
    assert c.tcp_info()["total_retrans"] >= 3
    assert c.tcp_info()["snd_ssthresh"] >= 0.6 * 20


def test_prr_sends_in_proportion_to_delivered_data(dialogue):
    """RFC 9937: during recovery, what goes out follows what arrives."""
    d = dialogue(initial_window=20, sndbuf=1 << 20)
    c = d.open_passive(rtt=50)
    c.send(b"x" * 60 * MSS)
    assert len(flight(d)) == 20
    d.run(d.now + 50)
    d.strict = False
    sent = []
    for end in range(2, 21):
        block = [("NOP", None), ("NOP", None), ("SAck", (1 + MSS, 1 + MSS * end))]
        d.send(TCP(flags="A", seq=1, ack=1, options=block))
        sent.append(len(flight(d)))
    assert max(sent) <= 5 and 10 <= sum(sent) <= 19, sent


def test_prr_sends_no_extra_segment_on_further_loss(dialogue):
    """RFC 9937: an acknowledgement that advances is not safe if it shows more to be lost."""
    d = dialogue(initial_window=30, sndbuf=1 << 20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 30)
    d.run(d.now + 50)
    d.strict = False
    d.send(ack(0, (10, 14)))
    assert numbers(flight(d)) == [0, 1, 2, 3]
    d.send(ack(1, (10, 14), (24, 25)))
    assert numbers(flight(d)) == [4, 5]


def test_prr_sends_no_burst_on_losses_of_rack_timer(dialogue):
    """RFC 9937: nothing was delivered. The timer runs in recovery once reordering was seen."""
    d = dialogue(initial_window=60, sndbuf=1 << 20)
    c = d.open_passive(rtt=50)
    send_flight(d, c, 3)
    d.send(ack(0, (1, 3)), at=d.now + 50)
    d.send(ack(3), at=d.now + 1)  # the first segment was late
    began = d.now
    for i in range(2):
        c.send(b"x" * 20 * MSS)
        assert numbers(d.drain()) == [*range(3 + 20 * i, 23 + 20 * i)]
        d.run(d.now + 5)
    d.send(ack(3, (42, 43)), at=began + 55)
    assert numbers(d.drain(until=began + 64)) == [3]  # the timer, for the first twenty
    assert numbers(d.drain(until=began + 90)) == []  # again, for the others
    assert c.tcp_info()["lost"] == 39
    d.send(ack(3, (41, 43)))
    assert numbers(d.drain()) == [4]


def test_prr_without_sack_counts_duplicates_once(dialogue):
    """RFC 9937: a partial acknowledgement has delivered the hole alone, for what it covers beyond
    was counted before, by duplicates."""
    d = dialogue(sack=0, initial_window=20, sndbuf=1 << 20)
    c = d.open_passive(sack=False, rtt=50)
    c.send(b"x" * 44 * MSS)
    assert len(flight(d)) == 20
    d.run(d.now + 50)
    d.strict = False
    for _ in range(17):  # 0 and 5 are lost, and one is still on its way
        d.send(ack(0))
    d.ignore()
    d.send(ack(5))
    assert numbers(flight(d)) == [5]


def test_duplicate_acks_count_only_up_to_flight_size(dialogue):
    """RFC 9937: a peer can make up any number of them (Savage's attack)."""
    d = dialogue(sack=0, sndbuf=1 << 20, window_scale=0)
    c = d.open_passive(sack=False, rtt=50, wscale=7, window=60_000)
    c.send(b"x" * 300 * MSS)
    assert len(flight(d)) == 10
    d.run(d.now + 50)
    d.strict = False
    for _ in range(200):
        d.send(TCP(flags="A", seq=1, ack=1, window=60_000))
    assert 20 <= len(flight(d)) <= 40


@pytest.mark.parametrize("sack", [True, False])
def test_cwnd_grows_once_by_cumulatively_acked_bytes(dialogue, sack):
    """RFC 5681, 3.1 and 3.2: the window grows by what is acknowledged cumulatively, once."""
    d = dialogue(sndbuf=1 << 20, sack=int(sack))
    c = d.open_passive(rtt=50, sack=sack)
    c.send(b"x" * 44 * MSS)
    assert len(flight(d)) == 10
    d.run(d.now + 50)
    d.strict = False
    for end in (2, 3):
        d.send(ack(0, *([(1, end)] if sack else [])))
        assert c.tcp_info()["snd_cwnd"] == 10
    d.send(ack(4))
    assert c.tcp_info()["snd_cwnd"] == 14


def use(d, c, trips, segments=0):
    """Round trips of 50 ms with so many segments; 0: with more than the window."""
    for _ in range(trips):
        window = c.tcp_info()["snd_cwnd"]
        waiting = c.tcp_info()["notsent_bytes"] // MSS
        c.send(b"x" * MSS * (segments or max(2 * window - waiting, 1)))
        packets = flight(d)
        d.run(d.now + 50)
        for packet in packets:
            d.send(TCP(flags="A", seq=1, ack=end_of(packet), window=60_000))


def acknowledge_all(d, end=0):
    """end: of what has arrived already."""
    while packets := flight(d):
        end = max(end, *map(end_of, packets))
        d.send(TCP(flags="A", seq=1, ack=end, window=60_000), at=d.now + 50)


def after_loss(dialogue):
    """A connection without unsent data, after one loss at 20 segments."""
    d = dialogue(sndbuf=1 << 20, window_scale=0)
    c = d.open_passive(rtt=50, wscale=4, window=60_000)
    _, end = lose_one(d, c)
    acknowledge_all(d, end)
    return d, c


def test_cubic_excludes_time_when_cwnd_was_not_limit(dialogue):
    """RFC 9438, 4.2 and 5.8: ten seconds later the cubic would be far above W_max."""
    d, c = after_loss(dialogue)
    use(d, c, 200, segments=1)
    before = c.tcp_info()["snd_cwnd"]
    use(d, c, 4)
    assert before < c.tcp_info()["snd_cwnd"] <= before + 6


def test_cwnd_after_idle_grows_by_slow_start(dialogue):
    """Up to most of the last window, and by no more than what each acknowledgement covers. The
    window that Reno would have is from before, and says nothing."""
    d, c = after_loss(dialogue)
    use(d, c, 50)
    peak = c.tcp_info()["snd_cwnd"]
    assert peak >= 40
    acknowledge_all(d)
    d.run(d.now + 60_000)
    c.send(b"y" * 200 * MSS)
    for _ in range(3):
        packets = flight(d)
        d.run(d.now + 50)
        for packet in packets:
            before = c.tcp_info()["snd_cwnd"]
            d.send(TCP(flags="A", seq=1, ack=end_of(packet), window=60_000))
            assert c.tcp_info()["snd_cwnd"] <= before + 1
    assert c.tcp_info()["snd_cwnd"] >= 0.7 * peak


LONG = {
    "window_scale": 9,
    "timestamps": 1,
    "sndbuf": 4 << 20,
    "rcvbuf": 4 << 20,
    "packets": 8192,
    "rto_min_us": 200_000,
    "delayed_ack_us": 1000,
}


def test_cubic_fills_long_fat_path(wire):
    """100 Mbit/s, 40 ms round trip, a queue of one bandwidth-delay product."""
    a = make_stack(address="192.0.2.1", **LONG)
    b = make_stack(address="192.0.2.2", seed=(3, 4), **LONG)
    w = wire(a, b, rate_bps=100_000_000, delay_ns=20_000_000, queue=330)
    client, server = connect_pair(w)
    size = 20_000_000
    took = w.run([Transfer(client, server, size)], limit_s=60)
    assert size * 8 / (took / 1e9) >= 0.7 * 100_000_000


class Losing:
    """A transfer without end, from slow start; `lose` takes a segment away."""

    def __init__(self, wire, *, delay_ns):
        config = {**LONG, "rto_min_us": 1_000_000}  # beyond any round trip here
        a = make_stack(address="192.0.2.1", **config)
        b = make_stack(address="192.0.2.2", seed=(3, 4), **config)
        self.armed = False
        self.wire = wire(a, b, delay_ns=delay_ns, impair=self._impair)
        client, server = connect_pair(self.wire)
        self.transfer = Transfer(client, server, 10**10, shut=False)
        self.info = client.tcp_info
        self.run(lambda: self.info()["snd_cwnd"] >= 60)

    def _impair(self, frame):
        if self.armed and len(frame) > 1000:
            self.armed = False
            return []
        return [(0, frame)]

    def run(self, until):
        self.wire.run([self.transfer], until=until, limit_s=20)

    def lose(self):
        """Loses one segment, and waits until it is repaired; the window before, in segments."""
        peak = 0

        def in_recovery() -> bool:
            nonlocal peak
            now = self.info()
            if now["ca_state"] == 0:
                peak = max(peak, now["snd_cwnd"])
            return now["ca_state"] != 0

        self.armed = True
        self.run(in_recovery)
        self.run(lambda: not in_recovery())
        return peak

    def after(self, seconds):
        """The window so long from now."""
        end = self.wire.now + round(seconds * 10**9)
        self.run(lambda: self.wire.now >= end)
        return self.info()["snd_cwnd"]


def test_cubic_returns_to_w_max(wire):
    """RFC 9438, 4.1: after a loss the window returns towards W_max, slower the nearer it is."""
    w = Losing(wire, delay_ns=20_000_000)
    peak = w.lose()
    assert w.info()["snd_cwnd"] == pytest.approx(0.7 * peak, rel=0.05)
    # RFC 9438, 4.2: K is when the window is back, C = 0.4 segments / s^3; and 4.3: not below
    # what Reno would have, 0.53 segments a round trip up to W_max, then one.
    k = (0.3 * peak / 0.4) ** (1 / 3)
    seen, before = {}, 0.0
    for part in (0.25, 0.5, 0.75, 1.0, 1.5):
        seen[part] = w.after((part - before) * k)
        before = part
        cubic = 0.4 * ((part - 1) * k) ** 3 + peak
        rounds = part * k / 0.04
        steep = min(rounds, 0.3 * peak / 0.53)
        reno = 0.7 * peak + 0.53 * steep + (rounds - steep)
        assert 0.93 * cubic <= seen[part] <= 1.07 * max(cubic, reno), seen
    assert w.info()["total_retrans"] == 1


def test_cubic_is_no_slower_than_reno(wire):
    """RFC 9438, 4.3: at short round trips Reno's line is above the cubic for a long time."""
    w = Losing(wire, delay_ns=1_000_000)
    peak = w.lose()
    rounds = 0.3 * peak / 0.53
    assert (0.3 * peak / 0.4) ** (1 / 3) > 10 * rounds * 0.002  # when the cubic would be back
    assert 0.93 * peak <= w.after(rounds * 0.002) <= 1.05 * peak


def test_cubic_fast_convergence_lowers_w_max(wire):
    """RFC 9438, 4.7: who loses before it is back at W_max lowers its sights, by more than beta."""
    w = Losing(wire, delay_ns=200_000_000)
    peak = w.lose()
    second = w.lose()
    assert second <= 0.85 * peak
    sights = 0.85 * second
    k = ((sights - 0.7 * second) / 0.4) ** (1 / 3)
    assert w.after(k) == pytest.approx(sights, rel=0.06)  # without that it is at `second` nearly


@pytest.mark.slow
@pytest.mark.sanitized
def test_two_connections_split_link_fairly(wire):
    a = make_stack(address="192.0.2.1", **LONG)
    b = make_stack(address="192.0.2.2", seed=(3, 4), **LONG)
    w = wire(a, b, rate_bps=50_000_000, delay_ns=5_000_000, queue=60)
    first = Transfer(*connect_pair(w, 5001), 100_000_000, shut=False)
    second = Transfer(*connect_pair(w, 5002), 100_000_000, shut=False)
    end = w.now + 6 * 10**9
    w.run([first, second], until=lambda: w.now >= end, limit_s=20)
    shares = sorted((first.received, second.received))
    assert sum(shares) * 8 / 6 >= 0.75 * 50_000_000
    assert shares[0] >= 0.15 * shares[1]


@pytest.mark.parametrize("receives", [False, True])
def test_cwnd_restarts_after_idle(dialogue, receives):
    """RFC 5681, 4.1: no burst of the old window's size after an idle time."""
    d = dialogue(initial_window=4, sndbuf=1 << 20, window_scale=0)
    c = d.open_passive(rtt=20, wscale=4, window=60_000)
    sink = Sink()
    d.strict = False
    c.send(b"x" * 100 * MSS)
    while len(sink.data) < 100 * MSS:
        sink.take(d.drain(until=d.now + 20))
        d.send(TCP(flags="A", seq=1, ack=sink.ack, window=60_000))
    assert c.tcp_info()["snd_cwnd"] >= 30
    if receives:  # acknowledging, more often than a timeout is long, is no use of the window
        for i in range(20):
            d.send(TCP(flags="PA", seq=1 + i, ack=sink.ack, window=60_000) / b"z", at=d.now + 50)
            d.ignore(until=d.now + 50)
    else:
        d.run(d.now + 60_000)
    c.send(b"y" * 100 * MSS)
    assert len(flight(d)) <= 10


def rounds(d, c, trips, apart=0.001):
    """The congestion window in segments after each round trip of so many ms, each segment
    acknowledged by itself, so many ms after the one before."""
    windows = []
    d.strict = False
    for trip in trips:
        c.send(b"x" * 400 * MSS)
        packets = flight(d)
        d.run(d.now + trip)
        for packet in packets:
            end = packet[TCP].seq + len(payload(packet))
            d.send(TCP(flags="A", seq=1, ack=end, window=60_000), at=d.now + apart)
        windows.append(c.tcp_info()["snd_cwnd"])
    return windows


def test_long_rtt_sends_small_bursts(dialogue):
    """Of a quarter of a window, at 50 ms, a queue that is nearly full would lose most."""
    d, c = begin_slow_start(dialogue)
    rounds(d, c, [50] * 3)
    window = c.tcp_info()["snd_cwnd"]
    begin = min(p[TCP].seq for p in flight(d))
    d.run(d.now + 50)
    sizes = []
    for acked in range(1, window // 2):
        d.send(TCP(flags="A", seq=1, ack=begin + acked * MSS, window=60_000))
        sizes.append(len([p for p in d.drain() if payload(p)]))
    assert window >= 60 and max(sizes) <= 3, sizes


def begin_slow_start(dialogue, rtt=50):
    d = dialogue(initial_window=10, sndbuf=1 << 23, window_scale=0)
    c = d.open_passive(rtt=rtt, wscale=10, window=60_000)
    return d, c


@pytest.mark.parametrize(
    "rtt, grown",
    [
        pytest.param(50, 60, marks=(pytest.mark.slow, pytest.mark.sanitized)),
        pytest.param(200, 217, marks=pytest.mark.slow),
        (6, 7.2),
    ],
)
def test_hystart_ends_slow_start_on_rtt_increase(dialogue, rtt, grown):
    """RFC 9406, 4.2: a quarter of the speed for five rounds, then congestion avoidance. By an
    eighth, at most 16 ms, and 1 ms instead of 4, which would be 12 MB at 25 Gbit/s, more than
    queues hold."""
    d, c = begin_slow_start(dialogue, rtt)
    windows = rounds(d, c, [rtt] * 3 + [grown] * 12)
    assert windows[2] >= 1.7 * windows[1], windows
    for slow in range(4, 8):  # the stack's rounds end somewhere within a trip
        assert 1.1 * windows[slow - 1] < windows[slow] < 1.5 * windows[slow - 1], windows
    assert windows[14] <= 1.05 * windows[9], windows


def test_slow_start_resumes_after_jitter(dialogue):
    d, c = begin_slow_start(dialogue)
    windows = rounds(d, c, [50, 50, 60, 60, 50, 50])
    assert windows[3] < 1.5 * windows[2], windows
    assert windows[5] >= 1.7 * windows[4], windows


def test_hystart_ignores_slow_rtt_increase(dialogue):
    """RFC 9406, 4.2: an eighth; here at least 1 ms."""
    for rtt, trips in (50, [50, 53, 56, 59, 62]), (2, [2, 2, 2.9, 2.9, 3.7]):
        d, c = begin_slow_start(dialogue, rtt)
        windows = rounds(d, c, trips)
        for before, after in zip(windows, windows[1:]):
            assert after >= 1.7 * before, windows


def test_standing_queue_of_half_rtt_ends_slow_start(dialogue):
    d, c = begin_slow_start(dialogue, 2)
    windows = rounds(d, c, [2, 2, 3.1], apart=0.02)
    assert windows[2] <= 1.8 * windows[1], windows  # after 0.5 ms, which brings 25 segments
    assert rounds(d, c, [3.1] * 3)[-1] <= 1.05 * windows[2]


def test_delay_of_whole_round_is_no_standing_queue(dialogue):
    """A host that did not run for a while finds a whole round late."""
    d, c = begin_slow_start(dialogue, 2)
    windows = rounds(d, c, [2, 2, 8, 2, 2], apart=0)
    for before, after in zip(windows, windows[1:]):
        assert after >= 1.7 * before, windows
