# SPDX-License-Identifier: Apache-2.0
"""Malformed frames: dropped without an answer, a leak or a change of state."""

from __future__ import annotations

import os
import random
import struct

import pytest
from scapy.layers.inet import ICMP, IP, TCP, fragment
from scapy.layers.l2 import ARP, Ether

from harp.testing._flow import FlowStack
from harp.testing.dialogue import (
    PEER_ADDRESS,
    PEER_MAC,
    STACK_ADDRESS,
    STACK_MAC,
    make_stack,
)
from harp.testing.frames import check_frame, checksum

FULL = bool(os.environ.get("HARP_TEST_FULL"))
FRAMES = 400_000 if FULL else 100_000  # mutated ones, of each kind
SPLIT_FRAMES = FRAMES // 2

SYN = IP(src=PEER_ADDRESS, dst=STACK_ADDRESS) / TCP(sport=4000, dport=80, flags="S", seq=1)


def still_serves(d, port=4001):
    """A new connection to the listener on port 80 works."""
    d.ignore()
    d.send(TCP(sport=port, dport=80, flags="S", seq=0))
    d.expect(TCP(dport=port, flags="SA", seq=0, ack=1))


def drops(d, *frames):
    d.listen(80)
    for frame in frames:
        d.send(frame if isinstance(frame, bytes) else bytes(frame))
    d.silence(during=1000)
    still_serves(d)


def changed(packet, offset, value):
    raw = bytearray(bytes(packet))
    raw[offset] = value
    # Header checksum anew, so that only the change itself is the fault.
    raw[10:12] = b"\0\0"
    header = bytes(raw[: max(20, (raw[0] & 15) * 4)])
    total = sum(struct.unpack(f"!{len(header) // 2}H", header[: len(header) // 2 * 2]))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    raw[10:12] = struct.pack("!H", ~total & 0xFFFF)
    return bytes(raw)


def test_wrong_ip_checksum_is_dropped(dialogue):
    packet = SYN.copy()
    packet.chksum = 0x1234
    drops(dialogue(), packet)


def test_wrong_tcp_checksum_is_dropped(dialogue):
    packet = SYN.copy()
    packet[TCP].chksum = 0x1234
    drops(dialogue(), packet)


def test_single_bit_errors_are_dropped(dialogue):
    """Every bit of a SYN is under a checksum, or does not matter."""
    d = dialogue()
    d.listen(80)
    d.strict = False
    raw = bytes(SYN)
    for bit in range(len(raw) * 8):
        frame = bytearray(raw)
        frame[bit // 8] ^= 1 << bit % 8
        d.stack.input(bytes(frame))
    d.silence()
    still_serves(d)


def test_fragments_are_dropped(dialogue):
    big = IP(src=PEER_ADDRESS, dst=STACK_ADDRESS) / ICMP(type=8) / (b"x" * 3000)
    first = SYN.copy()
    first.flags = "MF"
    later = SYN.copy()
    later.frag = 10
    drops(dialogue(), first, later, *fragment(big, 1000))


@pytest.mark.parametrize(("offset", "value"), [(6, 0x20), (6, 0x60), (6, 0x01), (7, 0x01)])
def test_fragment_of_expected_segment_is_dropped(dialogue, offset, value):
    """All numbers fit, so the usual path has to look, too: it would take a piece for the whole."""
    d = dialogue(timestamps=1, delayed_ack_us=0)
    c = d.open_passive(timestamps=True)
    frame = d.build(TCP(seq=1, ack=1) / b"a piece")
    d.send(changed(frame, offset, value))
    d.silence(during=1000)
    assert "tcp_fast_path" not in d.stack.counters()
    d.send(frame)
    d.expect(TCP(flags="A", ack=8))
    assert c.recv(100) == b"a piece"
    assert d.stack.counters()["tcp_fast_path"] == 1


def test_truncated_packets_are_dropped(dialogue):
    d = dialogue()
    d.listen(80)
    whole = bytes(SYN / b"payload")
    for length in range(len(whole)):
        d.send(whole[:length])
    d.silence(during=1000)
    still_serves(d)


def test_padding_after_packet_is_ignored(dialogue):
    d = dialogue()
    d.listen(80)
    d.send(bytes(SYN) + b"\0" * 6)
    d.drain()
    d.send(bytes(SYN.copy()) + b"\xff" * 1000)
    still_serves(d)


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (0, 0x44),  # header length below 20
        (0, 0x40),
        (0, 0x4F),  # header runs over the TCP header's place
        (0, 0x65),  # version 6
        (0, 0x05),
        (2, 0xFF),  # total length beyond the frame
        (3, 19),  # total length below the header
        (3, 20),  # no room for TCP
        (3, 39),
        (9, 17),  # UDP
        (9, 255),
    ],
)
def test_inconsistent_header_is_dropped(dialogue, offset, value):
    d = dialogue()
    d.listen(80)
    d.send(changed(SYN, offset, value))
    answers = d.drain(until=d.now + 1000)
    # At most an ICMP error about a protocol that is not there; never TCP.
    assert all(p[IP].proto == 1 for p in answers)
    still_serves(d)


@pytest.mark.parametrize("offset", [0, 1, 4, 11, 15])
def test_inconsistent_data_offset_is_dropped(dialogue, offset):
    packet = SYN.copy()
    packet[TCP].dataofs = offset
    drops(dialogue(), packet)


@pytest.mark.parametrize("ports", [(0, 80), (4000, 0), (0, 0)])
def test_port_zero_is_dropped(dialogue, ports):
    packet = SYN.copy()
    packet[TCP].sport, packet[TCP].dport = ports
    drops(dialogue(), packet)


def test_packet_for_other_address_is_dropped(dialogue):
    packet = SYN.copy()
    packet.dst = "192.0.2.77"
    drops(dialogue(), packet)


@pytest.mark.parametrize(
    "source", ["127.0.0.1", "0.0.0.0", "255.255.255.255", "239.1.2.3", "240.0.0.1"]
)
def test_non_unicast_source_address_is_dropped(dialogue, source):
    packet = SYN.copy()
    packet.src = source
    drops(dialogue(), packet)


def test_empty_frame_is_dropped(dialogue):
    d = dialogue()
    d.listen(80)
    assert d.stack.input(b"") is False
    assert d.stack.input(b"\0") is False
    still_serves(d)


def test_input_reports_malformed_frames(stack):
    s = stack()
    assert s.input(b"garbage") is False
    assert s.input(bytes(SYN)) is True


@pytest.mark.parametrize("flags", range(256))
def test_all_flag_combinations_are_survived(dialogue, flags):
    """On a closed port, a listener and an open connection."""
    d = dialogue()
    c = d.open_passive()
    listener = d.stack.socket()
    listener.bind((d.stack_address, 81))
    listener.listen(4)
    d.strict = False
    for port in (79, 81, 80):
        packet = IP(src=PEER_ADDRESS, dst=STACK_ADDRESS) / TCP(
            sport=d.peer_port, dport=port, flags=flags, seq=d.peer_iss + 9, ack=1
        )
        d.send(bytes(packet / b"xyz"))
    assert len(d.drain()) <= 6
    c.close()


# Floods of garbage


def seeds(ethernet):
    """Real frames of all kinds, to be mutated."""
    base = IP(src=PEER_ADDRESS, dst=STACK_ADDRESS)
    options = [("MSS", 1460), ("SAckOK", b""), ("Timestamp", (1, 2)), ("NOP", None), ("WScale", 7)]
    sack = [("NOP", None), ("NOP", None), ("SAck", (10, 20, 30, 40))]
    tcp = {"sport": 40000, "dport": 80}
    quoted = bytes(IP(src=STACK_ADDRESS, dst=PEER_ADDRESS) / TCP(sport=80, dport=40000))[:28]
    packets = [
        base / TCP(**tcp, flags="S", options=options),
        base / TCP(**tcp, flags="A", seq=1, ack=1) / (b"d" * 100),
        base / TCP(**tcp, flags="A", seq=500, ack=1, options=sack) / (b"d" * 30),
        base / TCP(**tcp, flags="FA", seq=1, ack=1),
        base / TCP(**tcp, flags="R", seq=1),
        base / ICMP(type=8, id=1, seq=2) / b"echo",
        base / ICMP(type=3, code=4, nexthopmtu=600) / quoted,
        base / ICMP(type=3, code=3) / quoted,
    ]
    if not ethernet:
        return [bytes(p) for p in packets]
    frames = [bytes(Ether(src=PEER_MAC, dst=STACK_MAC) / p) for p in packets]
    arp = ARP(op=1, hwsrc=PEER_MAC, psrc=PEER_ADDRESS, pdst=STACK_ADDRESS)
    frames.append(bytes(Ether(src=PEER_MAC, dst="ff:ff:ff:ff:ff:ff") / arp))
    return frames


def checksums(frame: bytearray, link: int) -> None:
    """Makes IP, TCP and ICMP checksums right, so that the mutation gets past them."""
    if len(frame) < link + 20 or frame[link] >> 4 != 4:
        return
    header = (frame[link] & 15) * 4
    if header < 20 or len(frame) < link + header:
        return
    frame[link + 10 : link + 12] = b"\0\0"
    frame[link + 10 : link + 12] = _sum(bytes(frame[link : link + header]))
    total = min(int.from_bytes(frame[link + 2 : link + 4], "big"), len(frame) - link)
    body = link + header
    length = total - header
    where = {6: 16, 1: 2}.get(frame[link + 9])
    if where is None or length < where + 2:
        return
    at = body + where
    frame[at : at + 2] = b"\0\0"
    data = bytes(frame[body : body + length])
    if frame[link + 9] == 6:
        data = bytes(frame[link + 12 : link + 20]) + struct.pack("!BBH", 0, 6, length) + data
    frame[at : at + 2] = _sum(data)


def _sum(data: bytes) -> bytes:
    return checksum(data).to_bytes(2, "big")


class Vandal:
    """Makes frames that are wrong, half of them where it hurts: on live connections.

    It listens to what the stack sends, so that it knows numbers that lie in the
    windows.
    """

    def __init__(self, seed: int, ethernet: bool) -> None:
        self.r = random.Random(seed)
        self.samples = seeds(ethernet)
        self.ethernet = ethernet
        self.link = 14 if ethernet else 0
        # (peer's port, stack's port): [next number of the peer, of the stack]
        self.live: dict[tuple[int, int], list[int]] = {}
        self.established = 0

    def learn(self, frame: bytes) -> None:
        segment = check_frame(frame, self.ethernet, 1500)
        if segment is None:
            return
        key = (segment.dport, segment.sport)
        if segment.flags & 0x04:
            self.live.pop(key, None)
            return
        peer = segment.ack if segment.flags & 0x10 else self.r.getrandbits(32)
        self.live[key] = [peer, (segment.seq + segment.length) % 2**32]
        if len(self.live) > 40:
            self.live.pop(next(iter(self.live)))

    def frame(self) -> bytes:
        """One frame: noise, a corrupted sample, or a corrupted segment of a connection."""
        kind = self.r.random()
        if kind < 0.1:
            return self.r.randbytes(self.r.randrange(0, 120))
        if kind < 0.4:
            frame = bytearray(self.r.choice(self.samples))
        else:
            frame = bytearray(self._segment())
        if self.r.random() < 0.6:
            self._corrupt(frame)
        if self.r.random() < 0.95:
            checksums(frame, self.link)
        return bytes(frame)

    def _segment(self) -> bytes:
        r = self.r
        if not self.live or r.random() < 0.05:
            port, numbers, flags = (r.randrange(1, 65536), 80), [r.getrandbits(32), 0], 0x02
        else:
            port = r.choice(list(self.live))
            numbers = self.live[port]
            flags = r.choice((0x10,) * 12 + (0x18, 0x11, 0x12, 0x14, 0x04, 0x02, 0x01, 0x30, 0))
        jump = r.choice((0,) * 6 + (1, -1, 100, -100, 1460, 5000, -5000, 65_535, 1 << 31))
        back = r.choice((0,) * 6 + (1, -1, -1000, 1000, -100_000, 1 << 31))
        edge = numbers[1] - r.randrange(0, 9000)
        options = r.choice((
            b"",
            b"\x01\x01\x08\x0a" + r.randbytes(8),
            b"\x01\x01\x05\x0a" + struct.pack("!II", edge % 2**32, (edge + 1460) % 2**32),
            b"\x02\x04" + r.randbytes(2) + b"\x04\x02\x03\x03" + bytes([r.randrange(20)]) + b"\0",
        ))  # fmt: skip
        tcp = struct.pack(
            "!HHIIBBHHH", port[0], port[1], (numbers[0] + jump) % 2**32,
            (numbers[1] + back) % 2**32, (5 + len(options) // 4) << 4, flags,
            r.choice((0, 1, 1000, 65_535)), 0, 0,
        ) + options + bytes(r.choice((0, 0, 1, 10, 100, 1460)))  # fmt: skip
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0)
        ip += bytes([192, 0, 2, 2, 192, 0, 2, 1])
        mac = bytes.fromhex((STACK_MAC + PEER_MAC).replace(":", "")) + b"\x08\0"
        return (mac if self.ethernet else b"") + ip + tcp

    def _corrupt(self, frame: bytearray) -> None:
        r = self.r
        for _ in range(r.choice((1, 1, 1, 2, 4, 16))):
            action = r.random()
            if action < 0.7:
                value = r.choice((0, 1, 0x7F, 0x80, 0xFF, r.randrange(256)))
                frame[r.randrange(len(frame))] = value
            elif action < 0.85 and len(frame) > 21:
                del frame[r.randrange(20, len(frame)) :]
            else:
                frame += r.randbytes(r.randrange(1, 80))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "ethernet",
    [
        pytest.param(False, id="ip", marks=(pytest.mark.slow, pytest.mark.sanitized)),
        pytest.param(True, id="ethernet"),
    ],
)
def test_mutated_frames_do_not_break_service(ethernet):
    """Random and mutated frames of each kind: answers are well formed, service goes on."""
    vandal = Vandal(2024 + ethernet, ethernet)
    s = make_stack(
        link=int(ethernet), timestamps=1, window_scale=7, max_connections=32, packets=128
    )
    listener = s.socket()
    listener.bind((STACK_ADDRESS, 80))
    listener.listen(8)
    now = 10**12
    accepted = []
    served = 0
    for i in range(FRAMES):
        if i % 50 == 0:
            now += vandal.r.choice((10**3, 10**6, 10**7, 10**9))
            s.advance(now)
            served += exercise(s, listener, accepted, vandal.r)
        s.input(vandal.frame())
        for frame in s.take():
            vandal.learn(frame)
    assert served > FRAMES / 400
    for sock in accepted:
        sock.close()
    s.advance(now + 10**12)
    s.take()
    assert_serves(s, listener, vandal.link, now + 10**12)


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.timeout(600)
def test_mutated_split_frames_leak_nothing():
    """Frames as devices split them: all counted, and no buffer or connection is lost."""
    vandal = Vandal(77, ethernet=True)
    r = vandal.r
    s = FlowStack(address=STACK_ADDRESS, prefix=24, link=1, mac=STACK_MAC, timestamps=1,
                  max_connections=32, packets=128, window_scale=7)  # fmt: skip
    listener = s.listen(80)
    now = 10**12
    answers = 0
    for i in range(SPLIT_FRAMES):
        frame = vandal.frame()
        at = r.randrange(min(14, len(frame)), len(frame) + 1)
        s.receive(frame[:at], frame[at:], r.choice((0, 0, 0, 1, 500, 65_535)))
        if i % 5 == 0:
            s.flush()
            if i % 50 == 0:
                now += r.choice((10**3, 10**6, 10**8))
                s.advance(now)
            for sent in s.take():
                vandal.learn(sent.data)
                answers += answer_arp(s, sent.data)
            for flow in listener.accepted[-30:]:
                if flow.closed is None and r.random() < 0.05:
                    act(r, flow)
    for flow in listener.accepted:
        if flow.closed is None:
            flow.abort()
    for hour in range(1, 10):
        s.advance(now + hour * 3600 * 10**9)
    counters = s.counters()
    dropped = sum(v for k, v in counters.items() if k.startswith("rx_drop_"))
    assert counters["rx_frames"] == SPLIT_FRAMES + answers
    assert counters["rx_frames"] / 10 < dropped < counters["rx_frames"]
    assert len(listener.accepted) > SPLIT_FRAMES / 1000
    assert counters.get("tcp_connections", 0) == 0
    assert counters.get("packets_used", 0) == 0


def act(r, flow):
    """Something that an owner does: reads slowly, pushes, or closes."""
    what = r.randrange(4)
    if what == 0:
        flow.limit = r.choice((0, 10, 10_000))
        flow.resume()
    elif what == 1 and r.random() < 0.1:
        flow.close()
    else:
        try:
            flow.push(b"x" * 3000)
        except OSError:
            pass  # closed, or enough is waiting


def answer_arp(s, frame) -> bool:
    """The peer answers for its address; whether it was asked."""
    asked = frame[12:14] == b"\x08\x06" and frame[21] == 1
    if asked:
        reply = frame[6:12] + bytes.fromhex(PEER_MAC.replace(":", "")) + frame[12:20] + b"\0\2"
        reply += bytes.fromhex(PEER_MAC.replace(":", "")) + frame[38:42] + frame[22:32]
        s.receive(reply)
    return asked


def exercise(s, listener, accepted, r) -> int:
    """The application's share: accepts, sends, reads, closes. How many were accepted."""
    before = len(accepted)
    try:
        while True:
            accepted.append(listener.accept()[0])
    except BlockingIOError:
        pass
    served = len(accepted) - before
    for sock in accepted:
        try:
            sock.send(b"x" * r.randrange(1, 3000))
            sock.recv(1000)
        except OSError:
            pass
    while len(accepted) > 8:
        accepted.pop(0).close()
    if r.random() < 0.1:
        sock = s.socket()
        sock.connect_ex((PEER_ADDRESS, 40000))
        accepted.append(sock)
    return served


def assert_serves(s, listener, link, now):
    """A fresh handshake and one byte get through."""
    wrap = (lambda p: bytes(Ether(src=PEER_MAC, dst=STACK_MAC) / p)) if link else bytes
    tcp = {"sport": 61234, "dport": 80}
    base = IP(src=PEER_ADDRESS, dst=STACK_ADDRESS)

    def answers():
        out = []
        for _ in range(5):
            s.advance(now)
            for frame in s.take():
                if link and frame[12:14] == b"\x08\x06" and frame[21] == 1:
                    reply = ARP(op=2, hwsrc=PEER_MAC, psrc=PEER_ADDRESS, hwdst=STACK_MAC,
                                pdst=STACK_ADDRESS)  # fmt: skip
                    s.input(bytes(Ether(src=PEER_MAC, dst=STACK_MAC) / reply))
                else:
                    out.append(IP(frame[link:]))
        return [p for p in out if TCP in p and p[TCP].dport == 61234]

    s.input(wrap(base / TCP(**tcp, flags="S", seq=1000)))
    (syn_ack,) = answers()
    assert syn_ack[TCP].flags == "SA"
    ack = syn_ack[TCP].seq + 1
    s.input(wrap(base / TCP(**tcp, flags="A", seq=1001, ack=ack) / b"!"))
    while True:
        sock, address = listener.accept()
        if address[1] == 61234:
            break
    assert sock.recv(10) == b"!"
