# SPDX-License-Identifier: Apache-2.0
"""What an xdp port sends: by a packet socket in copy mode, or by the AF_XDP socket."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from packet_ports import MSS, Hosts, Make, tcp_frame
from port_probe import (
    CHECKSUM_START,
    HEADERS,
    Frame,
    PortError,
    Probe,
    checksum_ok,
    payload_of,
    sequence_of,
)
from xdp_ports import BOTH_SENDERS, XDP_SENDS, needs_xdp, opened, until_received

pytestmark = needs_xdp

WIRES = ("veth-1500", "veth-1500-nooff", "veth-9000")

# By the packet socket


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("length", "pieces"), [(64900, 1), (30001, 250), (1, 2)])
def test_packet_socket_sends_long_segments_whole(
    xdp_pair: tuple[Probe, Probe], wire: str, length: int, pieces: int
) -> None:
    """The device or the kernel cuts and sums them."""
    a, b = xdp_pair
    mss = 8948 if wire == "veth-9000" else MSS
    payload = os.urandom(length)
    a.send(tcp_frame(a, b, payload, seq=0xFFFFF000), segment=mss, pieces=pieces)
    frames = b.receive_bytes(length)
    assert payload_of(frames) == payload
    assert all(frame.good or checksum_ok(frame.data) for frame in frames)
    assert a.count()["copied"] == length
    assert a.count()["errors"] == b.count()["lost"] == 0


LISTENER = """
import socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
    print("listening", flush=True)
    tap.settimeout(5)
    try:
        while b"heard by the host" not in tap.recv(2048):
            pass
        print("heard")
    except socket.timeout:
        print("silence")
"""


@pytest.mark.parametrize(("sender", "result"), [("auto", "heard"), ("xdp", "silence")])
def test_packet_socket_sends_in_copy_mode(
    xdp_pair: tuple[Probe, Probe], hosts: Hosts, result: str
) -> None:
    """Packet sockets of the host hear frames of other packet sockets, and none of AF_XDP."""
    a, b = xdp_pair
    tap = hosts("veth-1500")[0].popen(
        [sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True
    )
    assert tap.stdout and tap.stdout.readline() == "listening\n"
    a.send(tcp_frame(a, b, b"heard by the host"))
    assert payload_of(b.receive()) == b"heard by the host"
    assert tap.communicate(timeout=30)[0] == f"{result}\n"


# By the AF_XDP socket


@XDP_SENDS
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("length", "pieces"), [(65000, 1), (64999, 2), (30001, 250), (1, 2)])
def test_segments_are_cut_and_summed(
    xdp_pair: tuple[Probe, Probe], wire: str, length: int, pieces: int
) -> None:
    mss = 8948 if wire == "veth-9000" else MSS
    for a, b in (xdp_pair, xdp_pair[::-1]):
        payload = os.urandom(length)
        one = tcp_frame(a, b, payload, flags=0x19, seq=0xFFFFF000)
        a.send(one, segment=mss, pieces=pieces)
        frames = b.receive_bytes(length)
        assert payload_of(frames) == payload
        assert all(frame.good or checksum_ok(frame.data) for frame in frames)
        at = one.seq
        for frame in frames:
            last = frame is frames[-1]
            assert sequence_of(frame.data) == at % 2**32
            assert frame.data[47] == (0x19 if last else 0x10), "FIN and PSH are the last one's"
            at += len(frame.data) - HEADERS
        assert a.count()["copied"] == length
        assert a.count()["errors"] == b.count()["lost"] == 0


@XDP_SENDS
@pytest.mark.parametrize("mss", [76, 999, 1447])
def test_odd_segment_sizes(xdp_pair: tuple[Probe, Probe], mss: int) -> None:
    a, b = xdp_pair
    payload = os.urandom(20001)
    a.send(tcp_frame(a, b, payload), segment=mss, pieces=7)
    frames = b.receive(20001 // mss + 1)
    assert [len(f.data) - HEADERS for f in frames[:-1]] == [mss] * (20001 // mss)
    assert payload_of(frames) == payload and all(checksum_ok(f.data) for f in frames)


@XDP_SENDS
def test_smallest_segments_of_largest_frame_fit(xdp_pair: tuple[Probe, Probe]) -> None:
    a, b = xdp_pair
    a.send(tcp_frame(a, b, bytes(65400)), segment=76)
    assert len(b.receive(861)) == 861


@BOTH_SENDERS
def test_frames_keep_their_order(xdp_pair: tuple[Probe, Probe]) -> None:
    a, b = xdp_pair
    for number in range(100):
        a.send(tcp_frame(a, b, bytes(number % 3 * 700), seq=number), flush=number == 99)
    assert [sequence_of(f.data) for f in b.receive(100)] == list(range(100))


@BOTH_SENDERS
def test_complete_frame_is_sent_as_it_is(xdp_pair: tuple[Probe, Probe]) -> None:
    a, b = xdp_pair
    one = tcp_frame(a, b, b"complete", complete=True)
    a.send(one)
    a.send(tcp_frame(a, b, b"wrong sum", complete=True).__bytes__()[:-1] + b"x")
    first, second = b.receive(2)
    assert first.data == bytes(one) and not first.good
    assert not second.good and not checksum_ok(second.data)


@XDP_SENDS
def test_too_long_frame_is_emsgsize(xdp_pair: tuple[Probe, Probe]) -> None:
    a, b = xdp_pair
    too_many = tcp_frame(a, b, bytes(60000))
    for one, segment in ((tcp_frame(a, b, bytes(1500)), 0), (too_many, 1449), (too_many, 20)):
        with pytest.raises(PortError) as refused:
            a.send(one, segment=segment)
        assert refused.value.number == errno.EMSGSIZE
    assert a.count()["errors"] == 3


@XDP_SENDS
def test_full_ring_is_eagain_and_nothing_is_lost(xdp_pair: tuple[Probe, Probe]) -> None:
    """A burst beyond the ring gets EAGAIN or arrives; no accepted frame is lost on the way out."""
    a, b = xdp_pair
    a.send(tcp_frame(a, b, bytes(60000), seq=0), segment=76, flush=False)
    sent = 790
    try:
        for number in range(5):
            a.send(tcp_frame(a, b, bytes(30000), seq=number), segment=76, flush=False)
            sent += 395
    except PortError as full:
        assert full.number == errno.EAGAIN
    a.do("flush 0")
    assert len(b.receive(sent, 2)) + b.count()["lost"] == sent


# By both


@BOTH_SENDERS
def test_send_notices_that_the_link_is_down(probe: Make, hosts: Hosts, sender: str) -> None:
    """The sender need not receive before it knows."""
    first, second = hosts("veth-1500")
    a, b = opened(probe, first), opened(probe, second, f"xdp:eth0,send={sender}")
    second.set_link(False)
    try:
        b.send(tcp_frame(b, a))  # the flush finds out
        with pytest.raises(PortError) as down:
            b.send(tcp_frame(b, a))
        assert down.value.number == errno.ENETDOWN
        assert not b.arm(True)
    finally:
        second.set_link(True)
    assert payload_of(until_received(a, b)) == b"back"


Property = Callable[[str, object], None]


def speed(a: Probe, b: Probe, big: Frame) -> tuple[float, int]:
    """The received Gbit/s, and the frames."""
    b.start("drain 0 500 0 0 1")
    time.sleep(0.05)
    command = f"blast 0 700 {HEADERS} {MSS} {CHECKSUM_START} 16 {bytes(big).hex()}"
    a.do(command)
    arrived = json.loads(b.finish()[1])
    return arrived["bytes"] * 8 / max(arrived["ms"], 1) / 1e6, arrived["frames"]


@BOTH_SENDERS
@pytest.mark.parametrize("wire", ["veth-1500-nooff"])
def test_throughput_over_veth(xdp_pair: tuple[Probe, Probe], record_property: Property) -> None:
    """The bound is low, so that it detects a broken path also on a busy machine."""
    a, b = xdp_pair
    for _ in range(5):
        gbit, frames = speed(a, b, tcp_frame(a, b, bytes(44 * MSS)))
        record_property("gbit", round(gbit, 1))
        if gbit > 0.1 and frames > 200:
            return
    pytest.fail(f"{gbit:.2f} Gbit/s in the last try")
