# SPDX-License-Identifier: Apache-2.0
"""The test tools themselves: a dialogue must fail where it should, and show what happened."""

from __future__ import annotations

import pytest
from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import rdpcap

from harp.observe.pcapng import write_pcapng
from harp.testing.dialogue import Dialogue, DialogueError, Sink, make_stack, option
from harp.testing.frames import BadFrame, check_frame, check_ipv4, check_options
from harp.testing.wire import Impairment, Transfer, WireError, connect_pair, pattern

pytest_plugins = ["pytester"]


class Scripted:
    """Stands in for a stack: sends given frames at given times (ms), whatever it hears."""

    def __init__(self, *frames: tuple[float, bytes], stuck: bool = False) -> None:
        self.pending = [(10**12 + round(ms * 1e6), frame) for ms, frame in frames]
        self.output: list[bytes] = []
        self.stuck = stuck
        self.received: list[bytes] = []

    def advance(self, now: int) -> None:
        self.output += [frame for when, frame in self.pending if when <= now]
        self.pending = [(when, frame) for when, frame in self.pending if when > now]

    def next_deadline(self):
        if self.stuck:
            return 0
        return min((when for when, _ in self.pending), default=None)

    def input(self, frame: bytes) -> bool:
        self.received.append(frame)
        return True

    def take(self) -> list[bytes]:
        frames, self.output = self.output, []
        return frames


def segment(**fields) -> IP:
    payload = fields.pop("payload", b"")
    fields = {"sport": 80, "dport": 40000, "flags": "S", "seq": 77, **fields}
    return IP(src="192.0.2.1", dst="192.0.2.2") / TCP(**fields) / payload


def says(*frames, **options) -> Dialogue:
    return Dialogue(stack=Scripted(*((ms, bytes(f)) for ms, f in frames)), **options)


def test_expect_returns_frame_with_relative_numbers():
    d = says((0, segment(options=[("MSS", 1000)])), (5, segment(flags="A", seq=78, ack=0x10000003)))
    d.expect(TCP(flags="S", seq=0, options=[("MSS", 1000)]))
    got = d.expect(TCP(flags="A", seq=1, ack=3), at=5)
    assert got.time == 5


@pytest.mark.parametrize(
    ("packet", "options", "why"),
    [
        (TCP(flags="SA"), {}, "flags are S, not SA"),
        (TCP(seq=1), {}, "seq is 0, not 1"),
        (TCP(window=1), {}, "window is 8192, not 1"),
        (TCP(options=[("MSS", 1000)]), {}, "option MSS is missing"),
        (TCP(flags="S") / b"data", {}, "payload is"),
        (TCP(flags="S"), {"length": 5}, "0 bytes of payload, not 5"),
        (TCP(flags="S"), {"at": 100}, "at 100 ms"),
        (ICMP(type=8), {}, "no ICMP in it"),
    ],
)
def test_differing_frame_fails_expect(packet, options, why):
    d = says((0, segment()))
    with pytest.raises(DialogueError) as caught:
        d.expect(packet, **options)
    assert why in str(caught.value)
    assert "[S] seq 0" in str(caught.value)  # the trace


def test_unexpected_payload_fails_expect():
    with pytest.raises(DialogueError, match="payload is"):
        says((0, segment(payload=b"x"))).expect(TCP(flags="S"))


def test_missing_frame_fails_expect():
    with pytest.raises(DialogueError, match="sent nothing"):
        says().expect(TCP(flags="S"), within=1000)
    with pytest.raises(DialogueError, match="sent nothing"):
        says((10, segment())).expect(TCP(flags="S"), within=5)


def test_frame_during_silence_fails():
    with pytest.raises(DialogueError, match="expected silence"):
        says((10, segment())).silence(during=20)


def test_send_with_unexpected_frame_pending_fails():
    d = says((0, segment()))
    d.settle()
    with pytest.raises(DialogueError, match="unexpected frame"):
        d.send(TCP(flags="A", dport=80))


def test_psh_is_compared_only_on_request():
    says((0, segment(flags="PA"))).expect(TCP(flags="A"))
    with pytest.raises(DialogueError):
        says((0, segment(flags="A"))).expect(TCP(flags="PA"))


def test_deadline_in_the_past_fails_dialogue():
    with pytest.raises(DialogueError, match="stays in the past"):
        Dialogue(stack=Scripted(stuck=True)).settle()


@pytest.mark.parametrize("ethernet", [False, True])
def test_check_frame_finds_every_wrong_byte(ethernet):
    packet = segment(payload=b"payload", options=[("MSS", 1460), ("Timestamp", (1, 2))])
    # scapy would ask the network for an address that is not given.
    link = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    frame = bytes(link / packet if ethernet else packet)
    start = 14 if ethernet else 0
    assert check_frame(frame, ethernet).payload == b"payload"
    for at in range(start, len(frame)):
        wrong = bytearray(frame)
        wrong[at] ^= 0x10
        with pytest.raises(BadFrame):
            check_frame(bytes(wrong), ethernet)


def test_check_ipv4_finds_frame_above_mtu():
    frame = bytes(segment(payload=b"x" * 100))
    check_ipv4(frame, len(frame))
    with pytest.raises(BadFrame, match="above the MTU"):
        check_ipv4(frame, len(frame) - 1)


@pytest.mark.parametrize(
    "options",
    [b"\x02\x04\x05", b"\x02\x03\x05\x00", b"\x08\x0a", b"\x02\x04\x05\xb4" * 2, b"\x00\x01"],
)
def test_check_options_finds_wrong_options(options):
    with pytest.raises(BadFrame):
        check_options(options)


def test_a_bad_frame_fails_the_dialogue():
    frame = bytearray(bytes(segment()))
    frame[37] ^= 1
    with pytest.raises(DialogueError, match="TCP checksum is wrong"):
        says((0, bytes(frame))).settle()


def test_relative_peer_numbers_become_absolute():
    d = says((0, segment()))
    d.expect(TCP(flags="S"))
    d.send(TCP(flags="A", seq=5, ack=7, options=[("SAck", (9, 11))]) / b"data")
    received = IP(d.stack.received[0])[TCP]
    assert (received.seq, received.ack) == (0x10000005, 77 + 7)
    assert option(IP(d.stack.received[0]), "SAck") == (77 + 9, 77 + 11)


@pytest.mark.parametrize("link", [0, 1])
@pytest.mark.parametrize(
    "packet",
    [
        TCP(),
        TCP(flags="S", seq=0, options=[("MSS", 1460), ("SAckOK", b""), ("WScale", 7)]),
        TCP(flags="PA", seq=1, ack=1) / b"odd",
        TCP(sport=5, dport=6, flags="FPUEC", seq=-1, window=0) / bytes(1460),
        TCP(flags="A", seq=9, ack=7, options=[("Timestamp", (1, 2)), ("SAck", (9, 11)), (9, b"x")]),
        TCP(flags="N") / b"\xff\xff",
    ],
)
def test_segments_are_built_as_by_scapy(packet, link):
    """A field that is not common, with its default value, makes scapy build the same segment."""
    rare = packet.copy()
    rare.urgptr = 0
    built = []
    for one in (packet, rare):
        d = says(link=link)
        d.stack_port = 80
        built.append(d.build(one))
    assert built[0] == built[1]
    assert not one.fields.keys() <= packet.fields.keys()


def test_send_defaults_continue_dialogue():
    d = says((0, segment()), (1, segment(flags="PA", seq=78, payload=b"hello")))
    d.expect(TCP(flags="S"))
    d.send(TCP(flags="SA", seq=0))
    d.expect(TCP(seq=1) / b"hello", within=5)
    d.send(TCP() / b"answer")
    d.send(TCP())
    first, second, third = (IP(f)[TCP] for f in d.stack.received)
    assert (first.seq - d.peer_iss, first.ack) == (0, 78)
    assert (second.seq - d.peer_iss, second.ack) == (1, 83)
    assert (third.seq - d.peer_iss, third.ack) == (7, 83)


@pytest.mark.slow
@pytest.mark.sanitized
def test_failing_test_writes_capture(pytester):
    pytester.makeconftest('pytest_plugins = ["harp.testing.plugin"]')
    pytester.makepyfile(
        """
        from scapy.layers.inet import TCP

        def test_wrong(dialogue):
            d = dialogue()
            d.listen(80)
            d.send(TCP(flags="S", seq=0))
            d.expect(TCP(flags="R"))

        def test_right(dialogue, wire, stack):
            dialogue().connect(80)
            wire(stack(), stack(address="192.0.2.2"))
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1, passed=1)
    (named,) = [line for line in result.outlines if line.endswith(".pcapng")]
    packets = rdpcap(named)
    assert [str(p[TCP].flags) for p in packets] == ["S", "SA"]


def test_pcapng_keeps_time_and_direction(tmp_path):
    path = tmp_path / "x.pcapng"
    frames = [(1_500_000_000, True, bytes(segment())), (2_000_000_001, False, b"\x45")]
    write_pcapng(path, frames, ethernet=False, comment="why")
    packets = rdpcap(str(path))
    assert [float(p.time) for p in packets] == pytest.approx([1.5, 2.0])
    assert bytes(packets[0]) == frames[0][2]


def test_sink_reassembles_stream():
    sink = Sink()
    data = [segment(seq=1 + at, flags="A", payload=b"abcdef"[at : at + 3]) for at in (3, 2, 0)]
    for packet in data:
        sink.take([IP(bytes(packet))])
    assert (sink.data, sink.ack, sink.ended) == (b"abcdef", 7, False)
    sink.take([IP(bytes(segment(seq=7, flags="FA")))])
    assert (sink.ack, sink.ended) == (8, True)
    with pytest.raises(DialogueError, match="other content"):
        sink.take([IP(bytes(segment(seq=1, flags="A", payload=b"xyz")))])


def test_impairment_is_determined_by_seed():
    def run(seed):
        impair = Impairment(drop=0.1, duplicate=0.1, reorder=0.1, corrupt=0.1, seed=seed)
        return [impair(bytes([i] * 60)) for i in range(200)], impair.counts

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert all(5 <= count <= 50 for count in run(1)[1].values())


def test_pattern_identifies_offset():
    assert pattern(10, 100_000) == pattern(0, 200_000)[10:100_010]
    assert pattern(0, 64) not in pattern(1, 65_000)


def pair(wire, **options):
    a, b = make_stack(address="192.0.2.1"), make_stack(address="192.0.2.2", seed=(3, 4))
    return wire(a, b, **options)


def test_wrong_byte_fails_transfer(wire):
    w = pair(wire)
    client, server = connect_pair(w)
    transfer = Transfer(client, server, 1000)
    client.send(b"?")
    with pytest.raises(WireError, match="byte 0 of the stream is wrong"):
        w.run([transfer])


def test_early_eof_fails_transfer(wire):
    w = pair(wire)
    client, server = connect_pair(w)
    transfer = Transfer(client, server, 1000)
    transfer.sent = 1000
    with pytest.raises(WireError, match="ended after 0 of 1000"):
        w.run([transfer])


def test_dead_wire_fails_run(wire):
    w = pair(wire, impair=lambda frame: [])
    with pytest.raises(WireError, match="not done|stalled"):
        connect_pair(w)
