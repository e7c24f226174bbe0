# SPDX-License-Identifier: Apache-2.0
"""HARP_CHECKSUM=1 also covers a chunk's header. A changed bit of it is an immediate error with a
log line. It never misplaces a message or hangs a receive."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import SYSTEM_ERROR, Failed
from unauthenticated_peers import Scene, hello, scene_on, sites_of, token_of

from tools.hosts.lab import Lab

SIZE = 4096
TEXT = bytes(i % 251 for i in range(SIZE))
HEADER_BITS = {
    "message": 63,
    "offset": 64 + 50,
    "length": 128 + 20,
    "type": 160,
    "last": 168 + 7,
    "trailer": 168 + 6,
    "check": 192 + 3,
}


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 0x80 >> bit % 8
    return bytes(changed)


def chunk(bit: int = -1) -> bytes:
    """Message 0 as one chunk with checksums; bit: the bit of its header to flip."""
    header = struct.pack("!QQIBBH", 0, 0, SIZE, 1, 3, 0)
    header += struct.pack("!I", crc32c(header))
    return (flipped(header, bit) if bit >= 0 else header) + TEXT + struct.pack("!I", crc32c(TEXT))


@pytest.fixture
def scene(lab: Lab, tmp_path: Path) -> Iterator[Scene]:
    with scene_on(lab, sites_of(lab, tmp_path)) as made:
        yield made


def receive(scene: Scene, sent: bytes) -> None:
    rank = scene.listening
    with scene.unauthenticated_peer() as peer:
        peer.do("open 1")
        peer.do(f"send {hello(token_of(scene), version=(1, 2), checked=True).hex()}")
        link = rank.accept(scene.listener[0])
        rank.start("receive", link, 1, SIZE, 20_000)
        peer.do(f"send {sent.hex()}")
        rank.finish()


def test_unchanged_message_passes_checksum(scene: Scene) -> None:
    receive(scene, chunk())
    assert scene.listening.warnings == []


@pytest.mark.parametrize("field", HEADER_BITS)
def test_changed_chunk_header_is_an_error(scene: Scene, field: str) -> None:
    with pytest.raises(Failed) as failure:
        receive(scene, chunk(HEADER_BITS[field]))
    assert failure.value.code == SYSTEM_ERROR
    assert failure.value.call in ("irecv", "test")
    (warning,) = scene.listening.warnings
    assert "the header of a chunk changed" in warning
