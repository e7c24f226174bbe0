# SPDX-License-Identifier: Apache-2.0
"""RSTs sent and received: RFC 9293, 3.5.2 and 3.5.3; blind attacks: RFC 5961."""

from __future__ import annotations

import errno

import pytest
from scapy.layers.inet import IP, TCP

from harp.testing.dialogue import PEER_ADDRESS, STACK_ADDRESS, payload
from harp.testing.tcp_info import state_name

# What a closed port answers


def test_syn_to_closed_port_is_reset(dialogue):
    """No ACK: sequence number 0, and the SYN is acknowledged."""
    d = dialogue()
    d.send(TCP(dport=81, flags="S", seq=7))
    reset = d.expect(TCP(flags="RA", sport=81, dport=d.peer_port))
    assert reset[TCP].seq == 0
    assert reset[TCP].ack == 8


def test_ack_to_closed_port_is_reset(dialogue):
    """With ACK: the reset takes its number from there, and acknowledges nothing."""
    d = dialogue()
    d.send(TCP(dport=81, flags="A", seq=7, ack=12345) / b"data")
    reset = d.expect(TCP(flags="R", sport=81))
    assert reset[TCP].seq == 12345


def test_resets_are_rate_limited(dialogue):
    """At most a thousand resets a second; the next second has its own."""
    d = dialogue()
    d.strict = False

    def resets() -> int:
        for port in range(10000, 11200):
            d.send(TCP(sport=port, dport=81, flags="A", seq=7, ack=12345))
        return len(d.drain())

    assert resets() == 1000
    d.run(d.now + 1000)
    assert resets() == 1000


@pytest.mark.parametrize(
    ("flags", "size", "length"),
    [("", 10, 10), ("F", 0, 1), ("FP", 9, 10), ("SF", 0, 2), ("S", 3, 4)],
)
def test_reset_acks_whole_segment_length(dialogue, flags, size, length):
    d = dialogue()
    d.send(TCP(dport=81, flags=flags, seq=0) / (b"x" * size))
    reset = d.expect(TCP(flags="RA", sport=81))
    assert reset[TCP].ack == length


def test_a_reset_to_a_closed_port_is_not_answered(dialogue):
    d = dialogue()
    d.send(TCP(dport=81, flags="R", seq=0))
    d.send(TCP(dport=81, flags="RA", seq=0, ack=1))
    d.silence(during=1000)


# What a listener answers


def test_ack_to_listener_is_reset(dialogue):
    d = dialogue()
    d.listen(80)
    d.send(TCP(flags="A", seq=0, ack=55))
    reset = d.expect(TCP(flags="R"))
    assert reset[TCP].seq == 55
    d.send(TCP(flags="SA", seq=0, ack=56))
    reset = d.expect(TCP(flags="R"))
    assert reset[TCP].seq == 56


def test_a_reset_to_a_listener_is_ignored(dialogue):
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(flags="R", seq=0))
    d.send(TCP(flags="RA", seq=0, ack=5))
    d.silence()
    d.send(TCP(flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1))
    d.accept(listener)


@pytest.mark.parametrize("flags", ["", "F", "P", "FPU", "U"])
def test_segment_without_syn_ack_or_rst_to_listener_is_dropped(dialogue, flags):
    d = dialogue()
    d.listen(80)
    d.send(TCP(flags=flags, seq=0) / b"stray")
    d.silence(during=1000)


# What resets a connection


def test_reset_at_rcv_nxt_is_accepted(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="R", seq=1))
    d.silence(during=1000)
    assert c.poll() & 0x18  # POLLERR, POLLHUP
    with pytest.raises(ConnectionResetError):
        c.recv(10)
    assert c.recv(10) == b""
    with pytest.raises(BrokenPipeError):
        c.send(b"x")


def test_reset_error_is_reported_once(dialogue):
    d = dialogue()
    c = d.open_passive()
    d.send(TCP(flags="RA", seq=1, ack=1))
    assert c.error() == errno.ECONNRESET
    assert c.error() == 0


def test_reset_elsewhere_in_window_gets_challenge_ack(dialogue):
    """RFC 5961, 3.2."""
    d = dialogue()
    c = d.open_passive()
    for seq in (2, 1000, 60_000):
        d.send(TCP(flags="R", seq=seq))
        d.expect(TCP(flags="A", seq=1, ack=1))
    assert state_name(c.tcp_info()) == "ESTABLISHED"
    d.send(TCP(flags="R", seq=1))  # the true peer's answer to the challenge
    assert c.error() == errno.ECONNRESET


def test_reset_outside_window_is_ignored(dialogue):
    d = dialogue()
    c = d.open_passive()
    for seq in (0, -1, -1000, 100_000, 1 << 31):
        d.send(TCP(flags="R", seq=seq))
    d.silence(during=1000)
    assert state_name(c.tcp_info()) == "ESTABLISHED"


def test_syn_in_established_gets_challenge_ack(dialogue):
    """RFC 5961, 4.2: irrespective of the sequence number."""
    d = dialogue()
    c = d.open_passive()
    for seq in (1, 100, 0, -500, 1_000_000):
        d.send(TCP(flags="S", seq=seq))
        d.expect(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(flags="SA", seq=1, ack=1))
    d.expect(TCP(flags="A", seq=1, ack=1))
    assert state_name(c.tcp_info()) == "ESTABLISHED"


def test_data_with_slightly_old_ack_is_delivered(dialogue):
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    c.send(b"x")
    d.expect(TCP(seq=1) / b"x")
    d.send(TCP(flags="A", seq=1, ack=2))
    d.send(TCP(flags="A", seq=1, ack=1) / b"late")
    d.expect(TCP(flags="A", seq=2, ack=5))
    assert c.recv(10) == b"late"


def test_challenge_acks_are_rate_limited(dialogue):
    """RFC 5961, 7: a flood gets few answers, and later ones again."""
    d = dialogue()
    c = d.open_passive()
    d.strict = False
    for _ in range(500):
        d.send(TCP(flags="S", seq=1))
    assert 1 <= len(d.drain()) <= 100
    d.send(TCP(flags="S", seq=1), at=d.now + 10_000)
    assert len(d.drain()) == 1
    assert state_name(c.tcp_info()) == "ESTABLISHED"


def test_challenge_ack_limit_is_per_connection(dialogue):
    """CVE-2016-5696: a shared limit tells an attacker about other connections."""
    d = dialogue()
    listener = d.listen(80)
    for port in (5001, 5002):
        d.send(TCP(sport=port, flags="S", seq=0))
        d.expect(TCP(dport=port, flags="SA", seq=0, ack=1))
        d.send(TCP(sport=port, flags="A", seq=1, ack=1))
        d.accept(listener)
    d.strict = False
    for _ in range(500):
        d.send(TCP(sport=5001, flags="S", seq=1))
    d.ignore()
    d.send(TCP(sport=5002, flags="S", seq=1))
    d.expect(TCP(dport=5002, flags="A", seq=1, ack=1))


def test_bare_segments_do_not_use_up_challenge_acks(dialogue):
    """A blind flood of acknowledgements must not keep a restarted peer from being told."""
    d = dialogue()
    c = d.open_passive()
    d.strict = False
    for i in range(500):
        d.send(TCP(flags="A", seq=1, ack=1000 + i))
        d.send(TCP(flags="A", seq=100_000 + i, ack=1))
    assert len(d.drain()) <= 20
    d.send(TCP(flags="S", seq=70_000))
    d.expect(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(flags="R", seq=2))
    d.expect(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(flags="A", seq=0, ack=1))  # a keepalive
    d.expect(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(flags="A", seq=-4, ack=1) / b"again")  # whose answer was lost
    d.expect(TCP(flags="A", seq=1, ack=1))
    assert c.error() == 0


def test_acks_of_unacceptable_segments_are_rate_limited(dialogue):
    """Also one without timestamps on a connection that has them (RFC 7323, 3.2)."""
    for stamped in (False, True):
        d = dialogue(timestamps=1)
        d.open_passive(timestamps=stamped)
        d.flow().ts_on = False
        d.strict = False
        for i in range(300):
            d.send(TCP(flags="A", seq=1 if stamped else 200_000 + i, ack=1))
        assert 1 <= len(d.drain()) <= 20


@pytest.mark.parametrize("far", [1 << 29, 1 << 30, (1 << 31) + 1, -(1 << 29)])
def test_data_far_from_the_window_is_answered_at_a_limited_rate(dialogue, far):
    """A host that sees no packet cannot make HARP send as many acknowledgements as it likes."""
    d = dialogue()
    d.open_passive()
    d.strict = False
    for i in range(300):
        d.send(TCP(flags="A", seq=far + 5 * i, ack=1) / b"false")
    assert 1 <= len(d.drain()) <= 20


def test_each_repetition_of_data_in_the_last_window_is_answered(dialogue):
    """The peer may have lost all acknowledgements of a window."""
    d = dialogue()
    d.open_passive()
    d.strict = False
    for i in range(300):
        d.send(TCP(flags="A", seq=1 - 200 * (i + 1), ack=1) / b"again")
    assert len(d.drain()) == 300
    assert "tcp_challenge_limited" not in d.stack.counters()


@pytest.mark.parametrize("timestamps", [True, False])
def test_restarted_peer_gets_challenge_ack_and_reconnects(dialogue, timestamps):
    """RFC 9293, 3.5.1: its SYN is challenged, also one without the timestamps that the old
    connection had; its reset frees the way, and the SYN comes again."""
    d = dialogue(timestamps=1)
    c = d.open_passive(timestamps=True)
    listener = d.listen(80)
    options = [("Timestamp", (1000, 0))] if timestamps else []
    d.flow().ts_on = False
    d.send(TCP(flags="S", seq=5_000_000, options=options))
    answer = d.expect(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(flags="R", seq=answer[TCP].ack))
    assert c.error() == errno.ECONNRESET
    d.forget(peer_iss=d.peer_iss + 5_000_000)
    d.send(TCP(flags="S", seq=0, options=options))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1))
    d.accept(listener)


def test_reset_beyond_hole_is_challenged_until_data_arrives(dialogue):
    """In-window but beyond a hole it is challenged; after the data it counts."""
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive()
    d.send(TCP(flags="R", seq=6))
    d.expect(TCP(flags="A", seq=1, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1) / b"hello")
    d.expect(TCP(flags="A", seq=1, ack=6))
    d.send(TCP(flags="R", seq=6))
    assert c.error() == errno.ECONNRESET


@pytest.mark.parametrize("source", ["224.0.0.1", "255.255.255.255", "0.0.0.0", "192.0.2.255"])
def test_segment_from_non_unicast_source_is_not_answered(dialogue, source):
    """RFC 1122, 4.2.3.10: drop SYNs from broadcast and multicast addresses."""
    d = dialogue()
    d.listen(80)
    d.send(IP(src=source, dst=STACK_ADDRESS) / TCP(sport=1, dport=80, flags="S"))
    d.send(IP(src=source, dst=STACK_ADDRESS) / TCP(sport=1, dport=81, flags="A"))
    d.silence(during=1000)


@pytest.mark.parametrize("target", ["224.0.0.1", "255.255.255.255", "192.0.2.255"])
def test_segment_to_non_unicast_destination_is_not_answered(dialogue, target):
    """RFC 9293, 3.9.2.3 (MUST-57): a SYN to a broadcast or multicast address is ignored."""
    d = dialogue()
    d.listen(80)
    d.send(IP(src=PEER_ADDRESS, dst=target) / TCP(sport=1, dport=80, flags="S"))
    d.send(IP(src=PEER_ADDRESS, dst=target) / TCP(sport=1, dport=81, flags="A"))
    d.silence(during=1000)


def test_land_attack_starts_no_packet_storm(dialogue):
    """The "land" attack: our own address and port as the source, and all answers come back."""
    d = dialogue()
    d.listen(80)
    d.strict = False
    d.stack.input(
        d.build(IP(src=STACK_ADDRESS, dst=STACK_ADDRESS) / TCP(sport=80, dport=80, flags="S"))
    )
    frames = 0
    for _ in range(1000):
        d.drain(until=d.now + 60)
        new = [e.frame for e in d.trace if e.sent][frames:]
        frames += len(new)
        for frame in new:
            d.stack.input(frame)
    assert frames < 50


def test_duplicate_data_with_fin_after_close_gets_ack(dialogue):
    """The application had read these bytes before it closed, so nothing is lost. The peer repeats
    them together with its FIN."""
    d = dialogue(delayed_ack_us=0)
    c = d.open_passive(rtt=20)
    d.send(TCP(flags="PA", seq=1, ack=1) / b"get")
    d.expect(TCP(flags="A", seq=1, ack=4))
    assert c.recv(10) == b"get"
    c.send(b"answer")
    c.close()
    d.ignore()
    d.send(TCP(flags="FPA", seq=1, ack=1) / b"get")
    d.expect(TCP(flags="A", ack=5))
    again = d.drain(until=d.now + 3000)
    assert not [p for p in again if int(p[TCP].flags) & 0x04]
    assert b"answer" in [payload(p) for p in again]
