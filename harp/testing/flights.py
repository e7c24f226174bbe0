# SPDX-License-Identifier: Apache-2.0
"""Helpers for dialogues: segments by number, their acknowledgements, and received data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scapy.layers.inet import TCP
from scapy.packet import Packet

from harp.testing._stack import Socket
from harp.testing.dialogue import Dialogue, option, payload
from harp.testing.wire import pattern

MSS = 1460


def seq(i: int, mss: int = MSS) -> int:
    """The relative sequence number of segment i."""
    return 1 + i * mss


def ack(n: int, *sacked: tuple[int, int], mss: int = MSS) -> Packet:
    """Acknowledges the first n segments; sacked: ranges of segments [i, j)."""
    edges = tuple(seq(edge, mss) for block in sacked for edge in block)
    options = [("NOP", None), ("NOP", None), ("SAck", edges)] if edges else []
    return TCP(flags="A", seq=1, ack=seq(n, mss), options=options)


def dsack(n: int, i: int) -> Packet:
    """Acknowledges the first n segments, and reports segment i as received twice."""
    return ack(n, (i, i + 1))


def stamped(
    packet: Packet, d: Dialogue, n: int, *sacked: tuple[int, int], mss: int = MSS
) -> Packet:
    """ack(n, *sacked) with an echo of the packet's timestamp."""
    answer = ack(n, *sacked, mss=mss)
    echo = ("Timestamp", (d.peer_clock(), option(packet, "Timestamp")[0]))
    answer.options = [("NOP", None), ("NOP", None), echo, *answer.options]
    return answer


def send_flight(d: Dialogue, sock: Socket, segments: int = 10) -> None:
    """Sends full segments. Fails unless the stack sends all of them at once."""
    sock.send(pattern(0, segments * MSS))
    for i in range(segments):
        d.expect(TCP(seq=seq(i)), length=MSS)
    d.silence()


def resent(packets: Iterable[Packet]) -> list[tuple[float, float, int]]:
    """(time in ms, segment number, bytes) of each data segment."""
    return [
        (round(float(p.time), 3), (p[TCP].seq - 1) / MSS, len(payload(p)))
        for p in packets
        if payload(p)
    ]


def numbers(packets: Iterable[Packet]) -> list[int]:
    """The segment numbers of the data segments."""
    return [int(number) for _, number, _ in resent(packets)]


def blocks(packet: Packet) -> list[tuple[int, int]]:
    """The SACK blocks of an acknowledgement; none if it has no such option."""
    edges = option(packet, "SAck") or ()
    return list(zip(edges[::2], edges[1::2]))


def timestamp_option(value: int, echo: int = 0) -> list[tuple[str, Any]]:
    """A timestamps option after two NOPs, as senders write it."""
    return [("NOP", None), ("NOP", None), ("Timestamp", (value, echo))]


def read_all(sock: Socket) -> bytes:
    """Reads all available data."""
    data = b""
    while True:
        try:
            piece = sock.recv(65536)
        except BlockingIOError:
            return data
        if not piece:
            return data
        data += piece
