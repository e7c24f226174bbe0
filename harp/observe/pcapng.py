# SPDX-License-Identifier: Apache-2.0
"""Writes captures in the pcapng format, for Wireshark and tcpdump."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Union

LINKTYPE_ETHERNET = 1
LINKTYPE_RAW = 101  # starts with the IPv4 header

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_OPTION_COMMENT, _OPTION_FLAGS, _OPTION_TSRESOL = 1, 2, 9
_INBOUND, _OUTBOUND = 1, 2
_TOTAL = struct.Struct("<I")

Bytes = Union[bytes, memoryview]


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def _block(kind: int, body: bytes) -> bytes:
    total = len(body) + 12
    return struct.pack("<II", kind, total) + body + struct.pack("<I", total)


def head(ethernet: bool, comment: str = "", snaplen: int = 0) -> bytes:
    """The first blocks of a capture, with `comment`. `snaplen` is the most bytes kept of a frame;
    0: all."""
    options = _option(_OPTION_COMMENT, comment.encode()[:65535]) if comment else b""
    options += _option(0, b"") if options else b""
    linktype = LINKTYPE_ETHERNET if ethernet else LINKTYPE_RAW
    resolution = _option(_OPTION_TSRESOL, b"\x09") + _option(0, b"")
    return _block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + options) + _block(
        _INTERFACE, struct.pack("<HHI", linktype, 0, snaplen) + resolution
    )


_PACKET_HEAD = struct.Struct("<IIIIIII")
_PACKET_TAIL = {
    sent: _option(_OPTION_FLAGS, struct.pack("<I", _OUTBOUND if sent else _INBOUND))
    + _option(0, b"")
    for sent in (False, True)
}
_PADDING = [b"\0" * (-i % 4) for i in range(4)]


def packet(when: int, sent: bool, data: Bytes, length: int) -> tuple[bytes, Bytes, bytes]:
    """The block of a frame, in pieces to write one after the other. `length` is the frame's size,
    `data` its kept part, `when` is in ns, `sent` means sent by the stack."""
    kept = len(data)
    tail = _PACKET_TAIL[sent]
    padding = _PADDING[kept % 4]
    total = _PACKET_HEAD.size + kept + len(padding) + len(tail) + 4
    return (
        _PACKET_HEAD.pack(_PACKET, total, 0, when >> 32, when & 0xFFFFFFFF, kept, length),
        data,
        padding + tail + _TOTAL.pack(total),
    )


def write_pcapng(
    path: Path, frames: Iterable[tuple[int, bool, bytes]], ethernet: bool, comment: str = ""
) -> None:
    """Writes frames to `path`, with a comment. Each is (time in ns, whether the stack sent it,
    bytes). Raises OSError if the file cannot be written.
    """
    with open(path, "wb") as out:
        out.write(head(ethernet, comment))
        for when, sent, frame in frames:
            out.writelines(packet(when, sent, frame, len(frame)))
