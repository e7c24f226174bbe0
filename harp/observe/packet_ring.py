# SPDX-License-Identifier: Apache-2.0
"""A packet socket with a ring in mapped memory (TPACKET_V3, packet(7)).

The kernel writes frames into blocks; the socket's filter says how many bytes of each. The reader
gets a block when it is full or a timeout has passed, without a system call for each frame. A busy
reader therefore loses frames only when the ring's bytes are used up. A socket without a ring is
charged the whole buffer of each frame and holds only about 900 large frames.
"""

from __future__ import annotations

import contextlib
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
RETIRE_MS = 60  # the reader gets a block after this time even if it has room

_ETH_P_ALL = 3
_SO_ATTACH_FILTER = 26
_SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION = 5, 6, 10
_TPACKET_V3 = 2
_FRAME = 2048  # bytes; unused in V3, but the kernel checks it
_PACKET_OUTGOING = 4
_USER = 1  # TP_STATUS_USER: the reader owns the block

_BLOCK_STATUS, _BLOCK_FRAMES = 8, 12  # offsets in a block
_FRAMES = struct.Struct("=II")  # number of frames, offset of the first
_HEADER = struct.Struct("=IIIIIIHH")  # the first fields of struct tpacket3_hdr
_PACKET_TYPE = 58  # offset of sll_pkttype: the sockaddr_ll follows 48 bytes of tpacket3_hdr


@dataclass(frozen=True)
class Frame:
    """A frame of `length` bytes; `data` is the kept part, valid until the next block. `when` is in
    nanoseconds since the epoch; `sent` means that this host sent it."""

    when: int
    sent: bool
    length: int
    data: memoryview


class PacketRing:
    """Receives the frames of an interface that pass a filter, from its creation on. `size` is in
    bytes. Raises OSError: EPERM without CAP_NET_RAW, ENODEV for an unknown interface, ENOMEM."""

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
        """The number of blocks; fewer than requested if memory is short."""
        return self._blocks

    def filter(self, program: list[Instruction]) -> None:
        """Replaces the filter. The kernel does so atomically: every frame passes one of the two."""
        attach(self._socket, program)

    def blocks(self, timeout: float) -> Iterator[list[Frame]]:
        """Yields the frames of each ready block. Waits up to `timeout` seconds if there is none.
        The kernel owns a block again when the next one is requested."""
        if not self.holds(1):
            waiter = select.poll()  # select() fails for descriptors above 1023
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
        """Whether at least `blocks` blocks, at most the ring's, are ready."""
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
        """The number of frames dropped for lack of room since the last call."""
        told = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 12)
        return int(struct.unpack("=III", told)[1])

    def close(self) -> None:
        """Closes the ring. Frames must not be used afterwards."""
        self._socket.close()
        if hasattr(self, "_view"):
            self._view.release()
        if hasattr(self, "_map"):
            # Frames still refer to the memory after a failed write. It ends with them.
            with contextlib.suppress(BufferError):
                self._map.close()


def attach(wire: socket.socket, program: list[Instruction]) -> None:
    """Sets a socket's filter. Raises OSError if the kernel refuses the program."""
    code = b"".join(struct.pack("=HBBI", *one) for one in program)
    memory = ctypes.create_string_buffer(code)
    wire.setsockopt(
        socket.SOL_SOCKET,
        _SO_ATTACH_FILTER,
        struct.pack("@HP", len(code) // 8, ctypes.addressof(memory)),
    )
