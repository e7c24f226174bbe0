# SPDX-License-Identifier: Apache-2.0
"""Two stacks move streams over bad wires, in virtual time; every byte is verified."""

from __future__ import annotations

import socket

import pytest

from harp.testing.dialogue import make_stack
from harp.testing.tcp_info import state_name
from harp.testing.wire import Impairment, Transfer, connect_pair, unharmed

FULL = {
    "timestamps": 1,
    "window_scale": 7,
    "sndbuf": 1 << 20,
    "rcvbuf": 1 << 20,
    "packets": 4096,
    "rto_min_us": 5_000,
    "delayed_ack_us": 1_000,
}
A, B = "192.0.2.1", "192.0.2.2"


def pair(wire, one=None, other=None, **options):
    """A wire between two stacks with everything on, changed by `one` and `other`."""
    a = make_stack(**{**FULL, "address": A, "seed": (1, 2), **(one or {})})
    b = make_stack(**{**FULL, "address": B, "seed": (3, 4), **(other or one or {})})
    return wire(a, b, **options)


class Loss:
    """Loses the nth frame from `armed` on, once."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, frame: bytes) -> list[tuple[int, bytes]]:
        self.left -= 1
        return [] if self.left == 0 else [(0, frame)]


def duplex(client, server, size):
    return [Transfer(client, server, size), Transfer(server, client, size)]


def test_clean_link_needs_no_retransmission(wire):
    w = pair(wire)
    client, server = connect_pair(w)
    w.run([Transfer(client, server, 2_000_000)])
    assert client.tcp_info()["total_retrans"] == 0


@pytest.mark.parametrize("mss", [1400, 1000, 600])
def test_smaller_segments_do_not_slow_transfer(wire, mss):
    """Segments smaller than the largest so far are acknowledged as those were, not by the timer."""
    w = pair(wire, {"rto_min_us": 200_000, "delayed_ack_us": 40_000}, delay_ns=500_000)
    client, server = connect_pair(w)
    w.run([Transfer(client, server, 10_000, shut=False)])
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
    began = w.now
    w.run([Transfer(client, server, 200_000)])
    assert w.now - began < 20_000_000


@pytest.mark.parametrize("lost", [1, 3])
def test_loss_before_fin_causes_no_timeout(wire, lost):
    """The FIN's block tells of it (RFC 2018), as any data's would."""
    loss = Loss()
    w = pair(wire, {"rto_min_us": 200_000}, delay_ns=500_000, impair=loss, impair_back=unharmed)
    client, server = connect_pair(w)
    loss.left = lost
    began = w.now
    client.send(bytes(3 * 1448))
    w.flush()
    client.shutdown(1)
    w.flush()
    w.run(until=lambda: state_name(client.tcp_info()) == "FIN_WAIT2")
    assert w.now - began < 5_000_000
    assert server.recv(65536) == bytes(3 * 1448)
    assert client.tcp_info()["total_retrans"] == 1


def test_bidirectional_transfer_needs_no_retransmission(wire):
    w = pair(wire)
    client, server = connect_pair(w)
    w.run(duplex(client, server, 1_000_000))
    assert client.tcp_info()["total_retrans"] + server.tcp_info()["total_retrans"] == 0


def test_fins_into_zero_windows_are_accepted(wire):
    """Both sides have filled the other's window to the last byte and say that this was all: each
    FIN is taken, and acknowledged by a number that the other takes."""
    w = pair(wire, {"rcvbuf": 8192, "window_scale": 0})
    client, server = connect_pair(w)
    for sock in (client, server):
        assert sock.send(bytes(8192)) == 8192
    w.run(until=lambda: client.tcp_info()["unacked"] + server.tcp_info()["unacked"] == 0)
    frames = w.frames
    for sock in (client, server):
        sock.shutdown(socket.SHUT_WR)
    w.run(until=lambda: {state_name(s.tcp_info()) for s in (client, server)} == {"TIME_WAIT"})
    assert w.frames - frames <= 6
    for sock in (client, server):
        assert sock.recv(65536) == bytes(8192)
        assert sock.recv(1) == b""


@pytest.mark.parametrize(("mtu", "packets"), [(9000, 8), (9000, 16), (65_535, 40)])
def test_transfer_works_with_large_mtu_and_few_packets(wire, mtu, packets):
    """There may never be room for a full segment: the window opens by less, or stays shut."""
    w = pair(wire, {"mtu": mtu, "packets": packets}, mtu=mtu)
    client, server = connect_pair(w)
    w.run(duplex(client, server, 300_000), limit_s=60)


def test_largest_mtu_needs_no_window_probe(wire):
    """A full segment of this MTU must not exceed the payload of one output call. Else the sender
    finds no length that it may send, and only the persist timer sends."""
    w = pair(wire, {"mtu": 65_535}, mtu=65_535)
    client, server = connect_pair(w)
    assert w.run([Transfer(client, server, 2_000_000)]) < 100_000_000
    assert w.ends[0].stack.counters().get("tcp_window_probes", 0) == 0


@pytest.mark.parametrize("size", [0, 1, 1459, 1460, 1461, 65_535, 65_536, 100_001])
def test_transfer_works_with_every_size(wire, size):
    w = pair(wire)
    client, server = connect_pair(w)
    w.run(duplex(client, server, size), limit_s=20)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "fault",
    [
        {"drop": 0.01},
        {"drop": 0.05},
        {"drop": 0.2},
        {"drop": 0.01, "burst": 12},
        {"duplicate": 0.05},
        {"reorder": 0.05},
        {"corrupt": 0.02},
        {"drop": 0.02, "duplicate": 0.02, "reorder": 0.05, "corrupt": 0.02},
    ],
    ids=lambda f: ",".join(f"{k}={v}" for k, v in f.items()),
)
def test_transfer_survives_impairments(wire, fault, seed):
    w = pair(wire, impair=Impairment(seed=seed, **fault))
    client, server = connect_pair(w)
    w.run(duplex(client, server, 150_000), limit_s=300)
    assert sum(w.ends[0].impair.counts.values()) > 0


@pytest.mark.parametrize(
    "config",
    [
        {"timestamps": 0},
        {"sack": 0},
        {"timestamps": 0, "sack": 0, "window_scale": -1, "rcvbuf": 65_535},
        {"mtu": 576},
        {"mtu": 9000},
        {"delayed_ack_us": 0},
        {"delayed_ack_us": 200_000},
        {"rcvbuf": 3000},
        {"rcvbuf": 20_000, "window_scale": 3},
        {"sndbuf": 4096},
        {"initial_window": 1},
        {"packets": 64},
    ],
    ids=str,
)
def test_transfer_survives_impairments_with_other_settings(wire, config):
    fault = Impairment(drop=0.02, duplicate=0.01, reorder=0.03, corrupt=0.01, seed=5)
    w = pair(wire, config, impair=fault, mtu=config.get("mtu", 1500))
    client, server = connect_pair(w)
    w.run(duplex(client, server, 60_000), limit_s=600)


def test_transfer_works_between_unequal_configurations(wire):
    one = {"mtu": 9000, "timestamps": 1, "window_scale": 9}
    other = {"mtu": 1500, "timestamps": 0, "sack": 0, "window_scale": -1, "rcvbuf": 30_000}
    w = pair(wire, one, other, impair=Impairment(drop=0.01, seed=3))
    client, server = connect_pair(w)
    w.run(duplex(client, server, 200_000), limit_s=300)


def test_transfer_survives_ack_loss(wire):
    """Cumulative acknowledgements make up for each other."""
    w = pair(wire, impair=Impairment(), impair_back=Impairment(drop=0.3, seed=2))
    client, server = connect_pair(w)
    w.run([Transfer(client, server, 500_000)], limit_s=60)


def test_many_connections_survive_impairments(wire):
    w = pair(wire, {"max_connections": 64}, impair=Impairment(drop=0.02, reorder=0.02, seed=9))
    pairs = [connect_pair(w, port=6000 + i) for i in range(20)]
    w.run([Transfer(c, s, 30_000) for c, s in pairs], limit_s=300)


def test_slow_reader_survives_impairments(wire):
    w = pair(wire, {"rcvbuf": 8000, "sndbuf": 30_000}, impair=Impairment(drop=0.05, seed=4))
    client, server = connect_pair(w)
    transfer = Transfer(client, server, 100_000, read_every_ns=2_000_000, read_size=1111)
    w.run([transfer], limit_s=600)


def test_tail_drop_keeps_60_percent_of_rate(wire):
    """Tail drop: the only losses are those that the sender causes itself."""
    w = pair(wire, rate_bps=50_000_000, queue=30, delay_ns=5_000_000)
    client, server = connect_pair(w)
    took = w.run([Transfer(client, server, 3_000_000)], limit_s=60)
    assert w.queue_drops > 0
    assert 3_000_000 * 8 / (took / 1e9) >= 0.6 * 50_000_000


def test_losses_are_recovered_without_timeouts(wire):
    """1 % loss at 10 ms: nearly all by fast retransmission, else this would take much longer."""
    bad, good = Impairment(drop=0.01, seed=8), Impairment()
    w = pair(wire, {"rto_min_us": 200_000}, delay_ns=5_000_000, impair=bad, impair_back=good)
    client, server = connect_pair(w)
    took = w.run([Transfer(client, server, 2_000_000)], limit_s=60)
    assert took < 4e9


@pytest.mark.parametrize(
    ("late", "timestamps"),
    [({120: 12}, 1), ({120: 12}, 0), ({120: 20, 121: 5}, 1)],
    ids=["one", "one without timestamps", "two, the second selectively acknowledged"],
)
def test_late_segments_cost_one_retransmission_each(wire, late, timestamps):
    """RFC 8985, 6.2, step 2: where a queue stands, the original's answer comes soon after its
    copy was sent, yet later than the shortest round trip. It says nothing about all the rest.

    late: which segments of full size come how late, ms."""
    seen = 0

    def hold(frame):
        nonlocal seen
        seen += len(frame) > 1000
        return [(late.get(seen, 0) * 1_000_000 if len(frame) > 1000 else 0, frame)]

    settings = {"sndbuf": 4 << 20, "timestamps": timestamps}
    link = {"delay_ns": 100_000, "rate_bps": 20_000_000, "queue": 8192}
    w = pair(wire, settings, impair=hold, impair_back=unharmed, **link)
    client, server = connect_pair(w)
    w.run([Transfer(client, server, 600_000)])
    assert client.tcp_info()["total_retrans"] == len(late)


def test_slight_reordering_does_not_slow_transfer(wire):
    """RFC 8985: after the first signs the window for reordering opens."""
    clean = pair(wire, delay_ns=5_000_000)
    base = clean.run([Transfer(*connect_pair(clean), 2_000_000)])
    w = pair(wire, delay_ns=5_000_000, impair=Impairment(reorder=0.05, reorder_ns=300_000, seed=8))
    client, server = connect_pair(w)
    took = w.run([Transfer(client, server, 2_000_000)])
    assert took < 2 * base
    assert client.tcp_info()["total_retrans"] < 30


def test_the_same_seed_gives_the_same_run(wire):
    def run():
        w = pair(wire, impair=Impairment(drop=0.03, reorder=0.03, seed=11), capture=True)
        client, server = connect_pair(w)
        w.run(duplex(client, server, 50_000), limit_s=100)
        return w.capture

    assert run() == run()


def test_transfer_resumes_after_30_s_outage(wire):
    """Half a minute of silence in the middle: the transfer goes on when the path is back."""
    dead = {"on": False}

    def impair(frame):
        return [] if dead["on"] else [(0, frame)]

    w = pair(wire, impair=impair, delay_ns=2_000_000, rate_bps=20_000_000)
    client, server = connect_pair(w)
    transfer = Transfer(client, server, 1_000_000)
    w.run([transfer], until=lambda: transfer.received > 300_000, limit_s=10)
    dead["on"] = True
    end = w.now + 30 * 10**9
    w.run([transfer], until=lambda: w.now >= end, limit_s=100)
    dead["on"] = False
    w.run([transfer], limit_s=120)


def test_stacks_are_idle_after_close_and_time_wait(wire):
    """Both stacks are idle after orderly closes and TIME-WAIT, and serve again."""
    w = pair(wire, {"max_connections": 16}, impair=Impairment(drop=0.05, seed=6))
    for round_ in range(40):
        client, server = connect_pair(w, port=7000 + round_)
        w.run(duplex(client, server, 3_000), limit_s=100)
        client.close()
        server.close()
    w.run(limit_s=1000)
    assert w.ends[0].stack.next_deadline() is None
    assert w.ends[1].stack.next_deadline() is None
