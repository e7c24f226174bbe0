# SPDX-License-Identifier: Apache-2.0
"""Writes captures that Wireshark and tcpdump read (the pcapng format)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

LINKTYPE_ETHERNET = 1
LINKTYPE_RAW = 101  # starts with the IPv4 header

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_OPTION_COMMENT, _OPTION_FLAGS, _OPTION_TSRESOL = 1, 2, 9
_INBOUND, _OUTBOUND = 1, 2


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def _block(kind: int, body: bytes) -> bytes:
    total = len(body) + 12
    return struct.pack("<II", kind, total) + body + struct.pack("<I", total)


def write_pcapng(
    path: Path, frames: Iterable[tuple[int, bool, bytes]], ethernet: bool, comment: str = ""
) -> None:
    """Writes frames, each (time in ns, whether the stack sent it, bytes), to `path`.

    `comment` is kept with the capture. OSError if the file cannot be written.
    """
    options = _option(_OPTION_COMMENT, comment.encode()[:65535]) if comment else b""
    options += _option(0, b"") if options else b""
    linktype = LINKTYPE_ETHERNET if ethernet else LINKTYPE_RAW
    with open(path, "wb") as out:
        out.write(_block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + options))
        resolution = _option(_OPTION_TSRESOL, b"\x09") + _option(0, b"")
        out.write(_block(_INTERFACE, struct.pack("<HHI", linktype, 0, 0) + resolution))
        for when, sent, frame in frames:
            head = struct.pack("<IIIII", 0, when >> 32, when & 0xFFFFFFFF, len(frame), len(frame))
            flags = struct.pack("<I", _OUTBOUND if sent else _INBOUND)
            tail = _option(_OPTION_FLAGS, flags) + _option(0, b"")
            out.write(_block(_PACKET, head + frame + b"\0" * (-len(frame) % 4) + tail))
