# SPDX-License-Identifier: Apache-2.0
"""A packet socket with a ring in mapped memory (TPACKET_V3, packet(7)).

The kernel writes frames into blocks, as much of each as the socket's filter says, and hands
a block over when it is full or has waited; no call is made for a frame. So what a busy or
stopped reader loses depends on the ring's size and not on the number of frames: a socket
without a ring is charged each frame's whole buffer, and takes some nine hundred large ones.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand

BLOCK = 1 << 20  # bytes; holds the largest frame
RETIRE_MS = 60  # after so long a block is handed over though it has room

_ETH_P_ALL = 3
_SO_ATTACH_FILTER = 26
_SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION = 5, 6, 10
_TPACKET_V3 = 2
_FRAME = 2048  # unused by V3, but it is checked
_PACKET_OUTGOING = 4
_USER = 1  # of a block's status: it is the reader's

_BLOCK_STATUS, _BLOCK_FRAMES = 8, 12  # offsets in a block
_FRAMES = struct.Struct("=II")  # number of frames, offset of the first
_HEADER = struct.Struct("=IIIIIIHH")  # struct tpacket3_hdr, as far as it matters
_PACKET_TYPE = 58  # offset in a frame's header: sll_pkttype, behind its 48 bytes


@dataclass(frozen=True)
class Frame:
    """`data`: as much as was kept of `length` bytes; valid until the next block is asked for.
    `when` counts nanoseconds since the epoch; `sent`: this host sent it."""

    when: int
    sent: bool
    length: int
    data: memoryview


class PacketRing:
    """Frames of an interface that pass a filter, from the moment that it is made. Raises
    OSError: EPERM without CAP_NET_RAW, ENODEV for no such interface, ENOMEM."""

    def __init__(self, interface: str, program: list[Instruction], size: int) -> None:
        self._blocks = max(2, size // BLOCK)
        self._next = 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            self.filter(program)
            self._map = self._make_ring()
            self._view = memoryview(self._map)
            self._socket.bind((interface, _ETH_P_ALL))
        except BaseException:
            self.close()
            raise

    def _make_ring(self) -> mmap.mmap:
        self._socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V3)
        while True:
            request = struct.pack(
                "=7I", BLOCK, self._blocks, _FRAME, BLOCK // _FRAME * self._blocks, RETIRE_MS, 0, 0
            )
            try:
                self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
                return mmap.mmap(self._socket.fileno(), BLOCK * self._blocks)
            except OSError as failure:
                if failure.errno != errno.ENOMEM or self._blocks <= 2:
                    raise
                self._blocks //= 2

    @property
    def size(self) -> int:
        """Blocks; fewer than was wished where memory is short."""
        return self._blocks

    def filter(self, program: list[Instruction]) -> None:
        """The kernel swaps filters at once: no frame slips through in between."""
        attach(self._socket, program)

    def blocks(self, timeout: float) -> Iterator[list[Frame]]:
        """The frames of each block that the kernel has handed over; waits, at most so many
        seconds, if there is none. A block is the kernel's again when the next is asked for."""
        if not self.holds(1):
            waiter = select.poll()  # select() knows no descriptor beyond 1023
            waiter.register(self._socket, select.POLLIN | select.POLLERR)
            waiter.poll(timeout * 1000)
        for _ in range(self._blocks):
            if not self.holds(1):
                return
            start = self._next * BLOCK
            yield list(self._block(start))
            struct.pack_into("=I", self._map, start + _BLOCK_STATUS, 0)
            self._next = (self._next + 1) % self._blocks

    def holds(self, blocks: int) -> bool:
        """Whether so many blocks, at most the ring's, wait to be read."""
        last = (self._next + blocks - 1) % self._blocks
        (status,) = struct.unpack_from("=I", self._map, last * BLOCK + _BLOCK_STATUS)
        return bool(status & _USER)

    def _block(self, start: int) -> Iterator[Frame]:
        count, offset = _FRAMES.unpack_from(self._map, start + _BLOCK_FRAMES)
        at = start + offset
        for _ in range(count):
            step, seconds, nanoseconds, kept, length, _, mac, _ = _HEADER.unpack_from(self._map, at)
            yield Frame(
                seconds * 10**9 + nanoseconds,
                self._map[at + _PACKET_TYPE] == _PACKET_OUTGOING,
                length,
                self._view[at + mac : at + mac + kept],
            )
            at += step

    def lost(self) -> int:
        """Frames that passed the filter and found no room, since this was asked last."""
        told = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 12)
        return int(struct.unpack("=III", told)[1])

    def close(self) -> None:
        """Frames must not be looked at afterwards."""
        self._socket.close()
        if hasattr(self, "_view"):
            self._view.release()
        if hasattr(self, "_map"):
            self._map.close()


def attach(wire: socket.socket, program: list[Instruction]) -> None:
    """Sets a socket's filter. Raises OSError if the kernel does not take the program."""
    code = b"".join(struct.pack("=HBBI", *one) for one in program)
    memory = ctypes.create_string_buffer(code)
    wire.setsockopt(
        socket.SOL_SOCKET,
        _SO_ATTACH_FILTER,
        struct.pack("@HP", len(code) // 8, ctypes.addressof(memory)),
    )
