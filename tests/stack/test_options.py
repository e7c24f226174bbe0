# SPDX-License-Identifier: Apache-2.0
"""TCP options: RFC 9293, 3.1 and 3.7.1; RFC 7323; RFC 2018."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP

from harp.testing.dialogue import option, payload

ALL = {"timestamps": 1, "sack": 1, "window_scale": 7}


def raw_options(data: bytes, **fields):
    """A segment whose options are these bytes, padded to whole words."""
    data += b"\0" * (-len(data) % 4)
    return TCP(dataofs=5 + len(data) // 4, **fields) / data


def sizes(d):
    return [len(payload(p)) for p in d.drain()]


@pytest.mark.parametrize("mtu", [576, 1500, 9000, 65535])
def test_mss_offer_follows_mtu(dialogue, mtu):
    d = dialogue(mtu=mtu)
    d.connect(80)
    d.expect(TCP(flags="S", options=[("MSS", mtu - 40)]))


def test_syn_offers_enabled_options(dialogue):
    d = dialogue(**ALL)
    d.connect(80)
    syn = d.expect(TCP(flags="S", options=[("MSS", 1460), ("SAckOK", b""), ("WScale", 7)]))
    stamp = option(syn, "Timestamp")
    assert stamp is not None and stamp[1] == 0


def test_syn_offers_no_disabled_options(dialogue):
    d = dialogue(timestamps=0, sack=0, window_scale=-1)
    d.connect(80)
    syn = d.expect(TCP(flags="S", options=[("MSS", 1460)]))
    assert [name for name, _ in syn[TCP].options if name not in ("NOP", "EOL")] == ["MSS"]


def test_syn_ack_accepts_only_offered_options(dialogue):
    d = dialogue(**ALL)
    d.listen(80)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460)]))
    answer = d.expect(TCP(flags="SA", seq=0, ack=1, options=[("MSS", 1460)]))
    assert [name for name, _ in answer[TCP].options if name not in ("NOP", "EOL")] == ["MSS"]


def test_syn_ack_accepts_all_offered_options(dialogue):
    d = dialogue(**ALL)
    d.listen(80)
    offered = [("MSS", 1460), ("SAckOK", b""), ("Timestamp", (1234, 0)), ("WScale", 3)]
    d.send(TCP(flags="S", seq=0, options=offered))
    answer = d.expect(TCP(flags="SA", seq=0, ack=1, options=[("SAckOK", b""), ("WScale", 7)]))
    assert option(answer, "Timestamp")[1] == 1234


def test_default_send_mss_is_536(dialogue):
    d = dialogue()
    c = d.open_passive(mss=None)
    c.send(b"x" * 2000)
    assert sizes(d)[:3] == [536, 536, 536]


def test_segments_respect_peer_mss(dialogue):
    d = dialogue()
    c = d.open_passive(mss=1000)
    c.send(b"x" * 3000)
    assert sizes(d) == [1000, 1000, 1000]


def test_segments_respect_own_mtu(dialogue):
    d = dialogue(mtu=1000)
    c = d.open_passive(mss=8960)
    c.send(b"x" * 1920)
    assert sizes(d) == [960, 960]


def test_timestamps_reduce_segment_payload(dialogue):
    d = dialogue(timestamps=1)
    c = d.open_passive(mss=1460, timestamps=True)
    c.send(b"x" * 2896)
    assert sizes(d) == [1448, 1448]


@pytest.mark.parametrize("mss", [0, 1, 40])
def test_tiny_peer_mss_is_raised(dialogue, mss):
    """CVE-2019-11479: a peer may not make us send a header for every byte."""
    d = dialogue()
    c = d.open_passive(mss=mss)
    c.send(b"x" * 400)
    first = d.drain()[0]
    assert len(payload(first)) >= 48


def test_tcp_maxseg_lowers_offer_and_segments(dialogue):
    import socket

    d = dialogue()
    c = d.open_active(before=lambda s: s.setsockopt(6, socket.TCP_MAXSEG, 700))
    syn = next(e for e in d.trace if e.sent)
    assert option(d._relative(syn.frame), "MSS") == 700
    c.send(b"x" * 1400)
    assert sizes(d) == [700, 700]


def test_an_unknown_option_is_skipped(dialogue):
    d = dialogue()
    d.listen(80)
    data = bytes([253, 6, 1, 2, 3, 4]) + bytes([2, 4, 0x03, 0xE8]) + bytes([1, 1])
    d.send(raw_options(data, flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))


def test_option_after_unknown_option_is_parsed(dialogue):
    d = dialogue()
    listener = d.listen(80)
    data = bytes([253, 6, 1, 2, 3, 4]) + bytes([2, 4, 0x03, 0xE8]) + bytes([1, 1])
    # No payload follows: the SYN's options are all there is.
    d.send(raw_options(data, flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1))
    c = d.accept(listener)
    c.send(b"x" * 2000)
    assert sizes(d) == [1000, 1000]


@pytest.mark.parametrize(
    "data",
    [
        bytes([2, 4]),  # ends before its value
        bytes([2]),  # ends before its length
        bytes([2, 0, 5, 180]),  # a length of 0
        bytes([2, 1, 5, 180]),  # a length of 1
        bytes([8, 10, 0, 0]),  # runs past the header
        bytes([254, 255, 1, 1]),
        bytes([2, 3, 5, 4]),  # another length than the option's own
        bytes([3, 2, 4, 3]),
        bytes([1] * 39 + [2]),
        bytes([0] + [2, 4, 0, 1, 9, 9, 9]),  # garbage behind the end of the list
        bytes([5, 10, 0, 0, 0, 0, 0, 0, 0, 1]),  # SACK in a SYN
        bytes([4, 2] * 20),  # the same again and again
    ],
    ids=lambda data: data[:10].hex(),
)
def test_malformed_syn_options_are_survived(dialogue, data):
    d = dialogue(**ALL)
    listener = d.listen(80)
    # The last byte of a truncated list must be the header's last: pad in front.
    data = b"\1" * (-len(data) % 4) + data
    d.send(raw_options(data, flags="S", seq=0))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1) / b"still here")
    assert d.accept(listener).recv(100) == b"still here"


def test_option_does_not_extend_into_payload(dialogue):
    """The header has room for half of an MSS; what follows would make it 100 bytes."""
    d = dialogue()
    listener = d.listen(80)
    d.send(TCP(dataofs=6, flags="S", seq=0) / bytes([1, 1, 2, 4, 0, 100, 0, 0]))
    d.expect(TCP(flags="SA", seq=0, ack=1))
    d.send(TCP(flags="A", seq=1, ack=1))
    d.accept(listener).send(b"x" * 2000)
    assert sizes(d)[0] == 536


def test_malformed_data_options_are_survived(dialogue):
    d = dialogue()
    c = d.open_passive()
    segment = raw_options(bytes([254, 77, 1, 1]), flags="A", seq=1, ack=1)
    d.send(segment / b"data")
    d.ignore(until=500)
    d.send(TCP(seq=1, ack=1) / b"data and more")
    assert c.recv(100) == b"data and more"


def test_peer_window_is_scaled(dialogue):
    d = dialogue(window_scale=0, sndbuf=1 << 20, initial_window=40)
    c = d.open_passive(wscale=7, window=100)
    c.send(b"x" * 20_000)
    # Whole segments only: the rest waits for more window (RFC 9293, 3.8.6.2.1).
    assert 12_800 - 1460 < sum(sizes(d)) <= 12_800


def test_the_window_of_a_syn_is_never_scaled(dialogue):
    """RFC 7323, 2.2: even a SYN-ACK that carries the option shows its window as it is."""
    d = dialogue(window_scale=0, sndbuf=1 << 20, initial_window=40)
    c = d.open_active(wscale=7, window=5000)
    c.send(b"x" * 20_000)
    assert sum(sizes(d)) <= 5000


def test_own_window_is_scaled(dialogue):
    d = dialogue(window_scale=7, rcvbuf=1 << 20)
    listener = d.listen(80)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460), ("WScale", 0)]))
    answer = d.expect(TCP(flags="SA", seq=0, ack=1, options=[("WScale", 7)]))
    assert answer[TCP].window > 8000
    d.send(TCP(flags="A", seq=1, ack=1) / b"x")
    d.accept(listener)
    answer = d.expect(TCP(flags="A", ack=2), within=500)
    assert 1 << 17 <= answer[TCP].window << 7 <= 1 << 20


def test_window_scale_follows_receive_buffer(dialogue):
    """Else its room would be less than a unit of the field, and never told."""
    d = dialogue(window_scale=14, rcvbuf=8000)
    d.listen(80)
    d.send(TCP(flags="S", seq=0, options=[("MSS", 1460), ("WScale", 14)]))
    answer = d.expect(TCP(flags="SA", seq=0, ack=1))
    shift = dict(answer[TCP].options)["WScale"]
    assert 8000 // 32 < 1 << shift <= 8000 // 16


def test_window_is_not_scaled_without_peer_option(dialogue):
    d = dialogue(window_scale=7, rcvbuf=1 << 20, initial_window=40, sndbuf=1 << 20)
    c = d.open_passive(wscale=None, window=5000)
    d.send(TCP(seq=1, ack=1, window=5000) / b"x")
    answer = d.expect(TCP(flags="A", ack=2), within=500)
    assert answer[TCP].window > 32_767
    c.send(b"x" * 20_000)
    assert 3 * 1460 <= sum(sizes(d)) <= 5000


def test_window_scale_above_14_counts_as_14(dialogue):
    """RFC 7323, 2.3. 4 << 15 would let 131072 bytes go, 4 << 14 only 65536."""
    d = dialogue(window_scale=0, sndbuf=1 << 20, initial_window=200)
    c = d.open_passive(wscale=15, window=4)
    c.send(b"x" * 200_000)
    assert sum(sizes(d)) <= 65_536


def test_no_sack_blocks_without_sack_permitted(dialogue):
    d = dialogue()
    d.open_passive(sack=False)
    d.send(TCP(seq=1001, ack=1) / b"beyond a hole")
    answer = d.expect(TCP(flags="A", ack=1))
    assert option(answer, "SAck") is None
