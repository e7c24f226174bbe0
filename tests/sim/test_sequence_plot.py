# SPDX-License-Identifier: Apache-2.0
"""Time-sequence graphs of the simulator's captures, and of frames made by hand."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from simulator import run

from harp.observe.pcapng import write_pcapng
from harp.observe.time_sequence import COLOURS
from harp.testing.capture_reader import CaptureError, read_tcp
from harp.testing.time_sequence import NoFlow, draw, follow, main

A, B = "192.0.2.1", "192.0.2.2"


def frame(forth: bool, payload: int = 0, ethernet: bool = False, **fields) -> bytes:
    """A segment from A to B, or back."""
    ip = IP(src=A, dst=B) if forth else IP(src=B, dst=A)
    ports = {"sport": 1000, "dport": 80} if forth else {"sport": 80, "dport": 1000}
    packet = ip / TCP(**ports, **fields) / (b"x" * payload)
    # scapy would ask the network for an address that is not given.
    link = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    return bytes(link / packet if ethernet else packet)


def test_lossy_run_matches_stack_counters(tmp_path: Path) -> None:
    """The graph's sent, retransmitted and SACKed bytes match the stack's counters."""
    capture = tmp_path / "run.pcapng"
    result = run("bytes=400000,drop=0.02,faulty=1,delay_ns=100000", capture)
    seen = follow(read_tcp(capture))
    assert sum(high - low for _, low, high in seen.data) == result.bytes
    again = sum(high - low for _, low, high in seen.again)
    assert again == result.counters["tcp_retransmit_bytes"] > 0
    assert seen.sack
    places = [place for _, place in seen.ack]
    assert max(places) == result.bytes + 1  # including the FIN
    assert all(edge >= acked for (_, edge), (_, acked) in zip(seen.edge, seen.ack))


def test_svg_contains_every_series(tmp_path: Path) -> None:
    capture, picture = tmp_path / "run.pcapng", tmp_path / "run.svg"
    run("bytes=400000,drop=0.02,faulty=1,delay_ns=100000", capture)
    done = CliRunner().invoke(main, [str(capture), str(picture)])
    assert done.exit_code == 0, done.output
    root = ElementTree.parse(picture).getroot()
    drawn = {one.get("class"): one.get("d") for one in root.iter() if one.get("d")}
    captured = set(COLOURS) - {"lost"}  # the sender alone knows what it takes for lost
    assert captured < set(drawn)
    assert all(str(drawn[name]).startswith("M") for name in captured)


@pytest.mark.parametrize("ethernet", [False, True])
@pytest.mark.parametrize("first", [100, 2**32 - 700])
def test_sequence_numbers_become_stream_offsets(tmp_path: Path, ethernet: bool, first: int) -> None:
    capture = tmp_path / "hand.pcapng"

    def at(place: int) -> int:
        return (first + 1 + place) % 2**32

    sack = [("SAck", (at(500), at(1000)))]
    frames = [
        (0, True, frame(True, flags="S", seq=first, options=[("WScale", 0)], ethernet=ethernet)),
        (10, False, frame(False, flags="SA", seq=5, ack=at(0), window=4000, ethernet=ethernet,
                          options=[("WScale", 3)])),
        (20, True, frame(True, 500, flags="A", seq=at(0), ack=6, ethernet=ethernet)),
        (30, True, frame(True, 500, flags="A", seq=at(500), ack=6, ethernet=ethernet)),
        (40, False, frame(False, flags="A", seq=6, ack=at(0), window=400, options=sack,
                          ethernet=ethernet)),
        (50, True, frame(True, 500, flags="A", seq=at(0), ack=6, ethernet=ethernet)),
        (60, False, frame(False, flags="A", seq=6, ack=at(1000), window=500, ethernet=ethernet)),
    ]  # fmt: skip
    write_pcapng(capture, frames, ethernet)
    seen = follow(read_tcp(capture))
    assert seen.data == [(20, 0, 500), (30, 500, 1000)]
    assert seen.again == [(50, 0, 500)]
    assert seen.sack == [(40, 500, 1000)]
    assert seen.ack == [(10, 0), (40, 0), (60, 1000)]
    assert seen.edge == [(10, 4000), (40, 400 * 8), (60, 1000 + 500 * 8)]


def test_invalid_capture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xd4\xc3\xb2\xa1" + b"\0" * 20)
    with pytest.raises(CaptureError, match="not a little-endian pcapng file"):
        read_tcp(path)
    run("bytes=1000", path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CaptureError, match="cut off at byte"):
        read_tcp(path)
    done = CliRunner().invoke(main, [str(path), str(tmp_path / "y")])
    assert done.exit_code == 1 and "cut off" in done.output


def test_capture_without_payload_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_pcapng(path, [(0, True, frame(True, flags="S"))], False)
    with pytest.raises(NoFlow, match="no segment"):
        draw(read_tcp(path))
