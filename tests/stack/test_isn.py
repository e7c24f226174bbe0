# SPDX-License-Identifier: Apache-2.0
"""Unpredictable ISNs, ports and timestamps: RFC 6528, RFC 6056, RFC 7323, 5.4."""

from __future__ import annotations

from scapy.layers.inet import IP, TCP

from harp.testing.dialogue import Sink, make_stack, option
from harp.testing.frames import check_ipv4

PEER = "192.0.2.2"


def syn_of(stack, port=80, local=None, peer=PEER):
    sock = stack.socket()
    if local is not None:
        sock.bind(("192.0.2.1", local))
    sock.connect_ex((peer, port))
    stack.advance(stack.now)
    (frame,) = stack.take()
    return sock, check_ipv4(frame)


def isn(now=10**12, seed=(1, 2), port=80, local=5000, peer=PEER):
    stack = make_stack(seed=seed)
    stack.advance(now)
    return syn_of(stack, port, local, peer)[1].seq


def test_same_seed_gives_same_isn():
    assert isn() == isn()


def test_isn_depends_on_seed_and_four_tuple():
    base = isn()
    others = [isn(port=81), isn(local=5001), isn(peer="192.0.2.3")]
    others += [isn(seed=(1, 3)), isn(seed=(2, 2))]
    assert len({base, *others}) == 6
    # No fixed step either: what the next port gets tells nothing.
    steps = {(isn(local=5001 + i) - isn(local=5000 + i)) % 2**32 for i in range(20)}
    assert len(steps) == 20


def test_all_isn_bits_vary():
    numbers = [isn(local=5000 + i) for i in range(64)]
    for bit in range(32):
        ones = sum(number >> bit & 1 for number in numbers)
        assert 10 <= ones <= 54, bit


def test_isn_of_one_four_tuple_grows_with_time():
    """RFC 9293, 3.4.1: about 4 us a step, so that incarnations do not overlap."""
    base = 10**12
    first = isn(now=base)
    second = isn(now=base + 10**9)
    third = isn(now=base + 2 * 10**9)
    assert 100_000 <= (second - first) % 2**32 <= 10**9
    assert abs((third - second) % 2**32 - (second - first) % 2**32) <= 2


def test_passive_open_isn_depends_on_four_tuple():
    numbers = set()
    for port in range(5000, 5020):
        stack = make_stack(seed=(1, 2))
        stack.advance(10**12)
        listener = stack.socket()
        listener.bind(("192.0.2.1", 80))
        listener.listen(5)
        stack.input(bytes(IP(src=PEER, dst="192.0.2.1") / TCP(sport=port, dport=80, flags="S")))
        stack.advance(stack.now)
        numbers.add(check_ipv4(stack.take()[0]).seq)
    assert len(numbers) == 20


def sent_then_time_wait(d, size):
    """Sends size bytes without timestamps, and closes first. Returns the absolute SND.NXT."""
    c = d.open_passive(rtt=1)
    c.send(bytes(size))
    sink = Sink()
    while len(sink.data) < size:
        assert sink.take(d.drain())
        d.send(TCP(flags="A", seq=1, ack=sink.ack))
    c.shutdown(1)
    d.expect(TCP(flags="FA", seq=1 + size, ack=1))
    d.send(TCP(flags="FA", seq=1, ack=2 + size))
    d.expect(TCP(flags="A", seq=2 + size, ack=2))
    c.close()
    return d.flow().irs + size + 2


def test_reopened_time_wait_uses_new_sequence_numbers(dialogue):
    """RFC 9293, 3.6.1 (MAY-2): the new ISN is above all numbers of the old connection, also when
    that has sent faster than the clock of the ISN runs."""
    d = dialogue()
    old = sent_then_time_wait(d, 100_000)
    d.listen(80)
    d.forget(peer_iss=d.peer_iss + 100_000)
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    assert 0 < (d.flow().irs - old) % 2**32 < 2**31


def test_full_accept_queue_keeps_time_wait(dialogue):
    """The listener drops the SYN, so the old connection still answers for its numbers."""
    d = dialogue()
    sent_then_time_wait(d, 10)
    d.listen(80, backlog=1)
    for port in (5001, 5002):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.send(
            TCP(
                sport=port, flags="A", seq=1, ack=d.expect(TCP(dport=port, flags="SA"))[TCP].seq + 1
            )
        )
    d.send(TCP(flags="S", seq=100_000))
    d.silence()
    d.send(TCP(flags="FA", seq=1, ack=12))
    d.expect(TCP(flags="A", seq=12, ack=2))


def ephemeral(seed, count=50):
    stack = make_stack(seed=seed, max_connections=256)
    stack.advance(10**12)
    return [syn_of(stack)[1].sport for _ in range(count)]


def test_local_ports_differ_and_are_ephemeral():
    ports = ephemeral((1, 2))
    assert len(set(ports)) == len(ports)
    assert all(port >= 1024 for port in ports)


def test_local_ports_depend_on_the_seed():
    assert ephemeral((1, 2), 5) != ephemeral((3, 4), 5)


def test_a_local_port_in_use_is_not_chosen():
    stack = make_stack(max_connections=64)
    stack.advance(10**12)
    first = syn_of(stack)[1].sport
    again = make_stack(max_connections=64)
    again.advance(10**12)
    taken = again.socket()
    taken.bind(("192.0.2.1", first))
    taken.listen(1)
    assert syn_of(again)[1].sport != first


def stamp_of(seed, port=80):
    stack = make_stack(seed=seed, timestamps=1)
    stack.advance(10**12)
    sock = stack.socket()
    sock.bind(("192.0.2.1", 5000))
    sock.connect_ex((PEER, port))
    stack.advance(stack.now)
    return option(IP(stack.take()[0]), "Timestamp")[0]


def test_timestamp_offset_differs_per_connection():
    """RFC 7323, 5.4 and 7.1: an offset for each connection."""
    values = {stamp_of((1, 2)), stamp_of((3, 4)), stamp_of((1, 2), port=81)}
    assert len(values) == 3


def test_timestamps_continue_across_connections():
    """RFC 6191: on the same four numbers the next incarnation's are later, or a peer in TIME-WAIT
    refuses it; from both sides, and whatever the initial sequence number."""
    stack = make_stack(seed=(1, 2), timestamps=1)
    stamps = []
    for second in range(5):
        stack.advance(10**12 + second * 10**9)
        sock = stack.socket()
        sock.bind(("192.0.2.1", 5000))
        sock.connect_ex((PEER, 80))
        stack.advance(stack.now)
        stamps.append(option(IP(stack.take()[0]), "Timestamp")[0])
        sock.close()
    steps = {(after - before) % 2**32 for before, after in zip(stamps, stamps[1:])}
    assert steps <= {953, 954}  # of 2^20 ns
