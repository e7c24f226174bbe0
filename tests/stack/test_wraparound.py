# SPDX-License-Identifier: Apache-2.0
"""Sequence numbers that pass 2^32, on either side, in every mechanism."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import Sink, make_stack, option, payload
from harp.testing.frames import check_ipv4
from harp.testing.wire import Impairment, Transfer, connect_pair, pattern

MSS = 1460
NEAR = [2**32 - 1, 2**32 - 2, 2**32 - 700, 2**32 - 3 * MSS, 2**32 - 7 * MSS - 13]


@pytest.mark.parametrize("iss", NEAR)
def test_receive_across_sequence_wrap(dialogue, iss):
    d = dialogue(peer_iss=iss, delayed_ack_us=0)
    c = d.open_passive()
    data = pattern(0, 10 * MSS)
    for i in range(10):
        d.send(TCP(seq=1 + i * MSS, ack=1) / data[i * MSS : (i + 1) * MSS])
        d.expect(TCP(flags="A", ack=1 + (i + 1) * MSS))
    assert c.recv(20_000) == data


@pytest.mark.parametrize("iss", NEAR)
def test_reassembly_and_sack_across_sequence_wrap(dialogue, iss):
    d = dialogue(peer_iss=iss)
    c = d.open_passive()
    data = pattern(0, 10 * MSS)
    for i in (9, 7, 8, 3, 1, 5, 2, 4, 6):
        d.send(TCP(seq=1 + i * MSS, ack=1) / data[i * MSS : (i + 1) * MSS])
        answer = d.expect(TCP(flags="A", ack=1))
    assert option(answer, "SAck")[:2] == (1 + MSS, 1 + 10 * MSS)
    d.send(TCP(seq=1, ack=1) / data[:MSS])
    d.expect(TCP(flags="A", ack=1 + 10 * MSS))
    assert c.recv(20_000) == data


@pytest.mark.parametrize("iss", NEAR)
def test_unacceptable_segments_across_sequence_wrap(dialogue, iss):
    d = dialogue(peer_iss=iss, delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(seq=1, ack=1) / b"abc")
    d.expect(TCP(ack=4))
    for seq in (-5, -1000, 100_000, 1 << 31, (1 << 31) + 5):
        d.send(TCP(seq=seq, ack=1) / b"x")
        d.expect(TCP(flags="A", ack=4))
    d.send(TCP(flags="R", seq=100))
    d.expect(TCP(flags="A", ack=4))
    assert c.recv(10) == b"abc"


@pytest.mark.parametrize("iss", NEAR)
def test_fin_across_sequence_wrap(dialogue, iss):
    d = dialogue(peer_iss=iss)
    c = d.open_passive()
    d.send(TCP(flags="FA", seq=1, ack=1) / (b"z" * (2**32 - iss - 2 if iss > 2**32 - 800 else 5)))
    d.expect(TCP(flags="A"))
    while c.recv(10_000):
        pass


def own_iss(seed):
    """The number that a stack with this seed chooses in `near_edge`'s dialogue."""
    stack = make_stack(seed=seed)
    stack.advance(10**12)
    sock = stack.socket()
    sock.bind(("192.0.2.1", 5000))
    sock.connect_ex(("192.0.2.2", 80))
    stack.advance(stack.now)
    return check_ipv4(stack.take()[0]).seq


def near_edge(dialogue, **config):
    """A connection whose own numbers pass 2^32 within the next twenty segments."""
    at_epoch = own_iss((7, 7))
    # The number grows by one in 4096 ns (RFC 6528's clock): wait until it is close.
    target = 2**32 - 10 * MSS
    wait = (target - at_epoch) % 2**32 * 4096
    d = dialogue(seed=(7, 7), **config)
    d.run(wait / 1e6)
    c = d.open_active(rtt=20, before=lambda s: s.bind(("192.0.2.1", 5000)))
    irs = d.flow().irs
    assert 2**32 - 11 * MSS < irs < 2**32 - 9 * MSS
    return d, c


def test_send_across_sequence_wrap(dialogue):
    d, c = near_edge(dialogue)
    data = pattern(0, 40 * MSS)
    c.send(data)
    sink = Sink()
    d.strict = False
    while len(sink.data) < len(data):
        assert sink.take(d.drain(until=d.now + 20))
        d.send(TCP(flags="A", seq=1, ack=sink.ack))
    assert sink.data == data
    assert c.tcp_info()["total_retrans"] == 0


def test_fast_retransmit_across_sequence_wrap(dialogue):
    d, c = near_edge(dialogue, initial_window=20)
    data = pattern(0, 20 * MSS)
    c.send(data)
    assert len(d.drain()) == 20
    d.run(d.now + 20)
    d.strict = False
    # Lost: one segment before, one on and one behind the edge.
    block = [("NOP", None), ("NOP", None),
             ("SAck", (1 + 13 * MSS, 1 + 20 * MSS, 1 + 10 * MSS, 1 + 12 * MSS,
                       1 + 8 * MSS, 1 + 9 * MSS))]  # fmt: skip
    d.send(TCP(flags="A", seq=1, ack=1 + 7 * MSS, options=block))
    again = {(p[TCP].seq - 1) // MSS for p in d.drain(until=d.now + 19) if payload(p)}
    assert again <= {7, 9, 12}
    assert 7 in again
    d.send(TCP(flags="A", seq=1, ack=1 + 9 * MSS, options=block))
    again |= {(p[TCP].seq - 1) // MSS for p in d.drain(until=d.now + 19) if payload(p)}
    assert again >= {7, 9}


def test_timeout_across_sequence_wrap(dialogue):
    d, c = near_edge(dialogue, rto_min_us=200_000)
    data = pattern(0, 10 * MSS)
    c.send(data)
    d.ignore()
    d.send(TCP(flags="A", seq=1, ack=1 + 8 * MSS), at=d.now + 20)
    d.ignore()
    sink = Sink()
    sink.data = data[: 8 * MSS]
    d.strict = False
    for _ in range(40):
        if sink.take(d.drain(until=d.now + 100)):
            d.send(TCP(flags="A", seq=1, ack=sink.ack))
        if len(sink.data) == len(data):
            break
    assert sink.data == data


def test_zero_window_across_sequence_wrap(dialogue):
    d, c = near_edge(dialogue)
    data = pattern(0, 20 * MSS)
    c.send(data)
    d.strict = False
    sink = Sink()
    sink.take(d.drain())
    d.send(TCP(flags="A", seq=1, ack=sink.ack, window=0), at=d.now + 20)
    sink.take(d.drain(until=d.now + 5000))
    for _ in range(20):
        d.send(TCP(flags="A", seq=1, ack=sink.ack, window=20_000))
        sink.take(d.drain(until=d.now + 20))
    assert sink.data == data


@pytest.mark.parametrize("seed", range(3))
def test_lossy_streams_across_sequence_wrap(wire, seed):
    a = make_stack(address="192.0.2.1", timestamps=1, window_scale=4, seed=(7, 7), rto_min_us=5000)
    b = make_stack(address="192.0.2.2", timestamps=1, window_scale=4, seed=(8, 8), rto_min_us=5000)
    w = wire(a, b, impair=Impairment(drop=0.02, reorder=0.02, seed=seed))

    def fixed(sock):
        if sock.stack is a:
            sock.bind(("192.0.2.1", 5000))

    probe = make_stack(address="192.0.2.1", seed=(7, 7))
    probe.advance(w.now)
    sock = probe.socket()
    sock.bind(("192.0.2.1", 5000))
    sock.connect_ex(("192.0.2.2", 80))
    probe.advance(w.now)
    iss = check_ipv4(probe.take()[0]).seq
    w.now += (2**32 - 50_000 - iss) % 2**32 * 4096
    for end in w.ends:
        end.stack.advance(w.now)
    client, server = connect_pair(w, 80, before=fixed)
    w.run([Transfer(client, server, 150_000), Transfer(server, client, 150_000)], limit_s=300)
