# SPDX-License-Identifier: Apache-2.0
"""Reads the TCP segments of a capture (pcapng). The frames may be truncated after the headers.

It reads captures of little-endian machines with Ethernet or bare IPv4 frames: of the simulator, the
dialogues, `harp capture`, tcpdump and Wireshark.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from harp.testing.frames import ETHERTYPE_IP, IPPROTO_TCP, SYN

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_OPTION_FLAGS, _OPTION_TSRESOL = 2, 9
_INBOUND, _OUTBOUND = 1, 2
_ETHERNET, _RAW, _IPV4 = 1, 101, 228
_SCALE, _SACK, _NOP, _END = 3, 5, 1, 0


class CaptureError(ValueError):
    """The reader cannot read this file. The message names the file and the reason."""


@dataclass(frozen=True)
class TracedSegment:
    """A TCP segment of a capture. time: ns. sent: whether the capturing host sent it, None if the
    capture does not say. window: the unscaled value. scale: the window scale option of a SYN."""

    time: int
    interface: int
    sent: Optional[bool]
    src: str
    dst: str
    sport: int
    dport: int
    seq: int
    ack: int
    flags: int
    window: int
    payload: int  # bytes
    scale: Optional[int] = None
    sacks: tuple[tuple[int, int], ...] = ()


@dataclass
class _Interface:
    link: int
    unit_ns: float = 1000.0  # of a time stamp


@dataclass
class _Section:
    interfaces: list[_Interface] = field(default_factory=list)


def _options(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(body):
        code, length = struct.unpack_from("<HH", body, at)
        if code == 0:
            return
        yield code, body[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4


def _blocks(data: bytes, path: Path) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        if at + 12 > len(data):
            raise CaptureError(f"{path}: cut off at byte {at}")
        kind, total = struct.unpack_from("<II", data, at)
        if at == 0 and (kind != _SECTION or data[8:12] != b"\x4d\x3c\x2b\x1a"):
            raise CaptureError(f"{path}: not a little-endian pcapng file; convert it with editcap")
        if total < 12 or at + total > len(data):
            raise CaptureError(f"{path}: cut off at byte {at}")
        yield kind, data[at + 8 : at + total - 4]
        at += total


def _interface(body: bytes) -> _Interface:
    found = _Interface(struct.unpack_from("<H", body)[0])
    for code, value in _options(body[8:]):
        if code == _OPTION_TSRESOL:
            power = value[0] & 0x7F
            found.unit_ns = 1e9 / (2**power if value[0] & 0x80 else 10**power)
    return found


def _ip_packet(frame: bytes, link: int) -> Optional[bytes]:
    if link in (_RAW, _IPV4):
        return frame
    if link == _ETHERNET and frame[12:14] == struct.pack("!H", ETHERTYPE_IP):
        return frame[14:]
    return None


def _tcp_options(options: bytes) -> tuple[Optional[int], tuple[tuple[int, int], ...]]:
    scale, sacks, at = None, [], 0
    while at + 1 < len(options) and options[at] != _END:
        if options[at] == _NOP:
            at += 1
            continue
        kind, length = options[at], max(options[at + 1], 2)
        value = options[at + 2 : at + length]
        if kind == _SCALE and len(value) == 1:
            scale = value[0]
        if kind == _SACK and len(value) % 8 == 0:
            sacks = [struct.unpack_from("!II", value, i) for i in range(0, len(value), 8)]
        at += length
    return scale, tuple(sacks)


def _segment(ip: bytes, time: int, interface: int, sent: Optional[bool]) -> Optional[TracedSegment]:
    header = (ip[0] & 15) * 4 if len(ip) >= 20 and ip[0] >> 4 == 4 else 0
    if not header or ip[9] != IPPROTO_TCP or len(ip) < header + 20:
        return None
    total = struct.unpack_from("!H", ip, 2)[0]
    sport, dport, seq, ack, offset, flags, window = struct.unpack_from("!HHIIBBH", ip, header)
    length = (offset >> 4) * 4
    scale, sacks = _tcp_options(ip[header + 20 : header + length])
    return TracedSegment(
        time, interface, sent, socket.inet_ntoa(ip[12:16]), socket.inet_ntoa(ip[16:20]), sport,
        dport, seq, ack, flags, window, max(total - header - length, 0),
        scale if flags & SYN else None, sacks,
    )  # fmt: skip


def _direction(options: bytes) -> Optional[bool]:
    for code, value in _options(options):
        if code == _OPTION_FLAGS:
            way = struct.unpack("<I", value)[0] & 3
            return {_INBOUND: False, _OUTBOUND: True}.get(way)
    return None


def _packet(body: bytes, section: _Section) -> Optional[TracedSegment]:
    number, high, low, kept, _ = struct.unpack_from("<IIIII", body)
    interface = section.interfaces[number]
    packet = _ip_packet(body[20 : 20 + kept], interface.link)
    if packet is None:
        return None
    time = round((high << 32 | low) * interface.unit_ns)
    return _segment(packet, time, number, _direction(body[20 + kept + -kept % 4 :]))


def read_tcp(path: Path) -> list[TracedSegment]:
    """The TCP segments of a capture, in its order. Raises CaptureError or OSError."""
    section = _Section()
    found = []
    for kind, body in _blocks(path.read_bytes(), path):
        if kind == _SECTION:
            section = _Section()
        elif kind == _INTERFACE:
            section.interfaces.append(_interface(body))
        elif kind == _PACKET:
            segment = _packet(body, section)
            if segment is not None:
                found.append(segment)
    return found
