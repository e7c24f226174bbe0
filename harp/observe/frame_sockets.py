# SPDX-License-Identifier: Apache-2.0
"""Frames that a process copies itself, because its device's frames reach no packet socket.

Each of its instances listens at a socket in the run folder (harp/engine/capture.h), and sends the
copies that a request asks for. The kernel runs the filter on them, and stamps them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

from harp import credentials
from harp.observe import statfile
from harp.observe.packet_ring import Frame, Instruction, attach
from harp.observe.statfile import Process

_VERSION = 1
_REQUEST = struct.Struct("=III")  # struct harp_capture_request
_LEAST = 64  # bytes: the headers that tell a frame's length
_ARENA = 8 << 20  # bytes of a block of frames
_BLOCK = 256  # frames
_LARGEST = 1 << 17  # bytes; longer than any frame
_ANSWER_S = 10.0  # an idle instance polls once in a second
_SIOCOUTQ = 0x5411
_SO_TIMESTAMPNS = 35
_TIME = struct.Struct("@ll")
_ETHERNET = 14
_RETURN, _LOAD_LENGTH = 0x06, 0x80  # BPF


class CaptureRefused(RuntimeError):
    """The process gives no frames. The text has the remedy."""


def asks_for_length(program: Sequence[Instruction]) -> bool:
    """Whether the result depends on a frame's length, which a truncated copy does not have."""
    return any(code == _LOAD_LENGTH for code, *_ in program)


def _length(data: memoryview) -> int:
    """The length of the frame that begins with these bytes."""
    if len(data) < _LEAST or bytes(data[12:14]) != b"\x08\x00":
        return len(data)
    return max(len(data), _ETHERNET + int.from_bytes(data[16:18], "big"))


def _has_ended(one: socket.socket) -> bool:
    try:
        return not one.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def socket_of(process: Process, instance: int) -> Path:
    """Where an instance listens."""
    return Path(process.path).with_name(f"{process.id}-{instance}.capture")


def connect(one: socket.socket, path: Path) -> None:
    """Connects to a path that may be longer than an address. Raises OSError."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        one.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


class FrameSockets:
    """Receives the frames of a process that pass a filter, from its creation on. `direction` is
    "in", "out" or None: both. Has the methods of PacketRing. Raises CaptureRefused."""

    size = 64  # blocks behind which a reader is late

    def __init__(
        self, process: Process, program: list[Instruction], direction: Optional[str]
    ) -> None:
        self._process = process
        self._sockets: dict[int, tuple[socket.socket, bool]] = {}
        self._arena = memoryview(bytearray(_ARENA))
        self._full = 0  # full blocks in a row
        self._kept = 0  # bytes of each frame
        self._missed = process.totals.get("capture_lost", 0)
        ways = [sent for sent in (False, True) if direction in (None, "out" if sent else "in")]
        try:
            for number in range(len(process.instances)):
                for sent in ways:
                    one = self._connect(number)
                    self._sockets[one.fileno()] = one, sent
            self.filter(program)
            self._await_acceptance()
        except BaseException:
            self.close()
            raise

    def _connect(self, number: int) -> socket.socket:
        process = self._process
        path = socket_of(process, number)
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            connect(one, path)
            _, uid, _ = credentials.of_peer(one)
        except OSError as failed:
            one.close()
            if failed.errno in (errno.EACCES, errno.EPERM):
                raise self._other_user() from None
            if failed.errno == errno.EAGAIN:
                raise self._no_place() from None
            raise CaptureRefused(
                f"{path}: {failed.strerror}; pid {process.pid} has just ended, runs an older "
                "release of HARP, or has a run folder that takes no sockets: start it again with "
                "this release, and with a local folder in HARP_RUN_DIR"
            ) from None
        if uid != process.uid:
            one.close()
            raise CaptureRefused(
                f"another user answers in the place of pid {process.pid}; see ss -xlp for the "
                f"program at {path}, and end it"
            )
        return one

    def _other_user(self) -> CaptureRefused:
        return CaptureRefused(
            f"pid {self._process.pid} refuses captures by this user; run as root or as its own "
            f"user (uid {self._process.uid})"
        )

    def _no_place(self) -> CaptureRefused:
        return CaptureRefused(
            f"pid {self._process.pid}: other captures of it run already; end one of them"
        )

    def _await_acceptance(self) -> None:
        """Waits until the process has read the requests."""
        end = time.monotonic() + _ANSWER_S
        for fd, (one, _) in self._sockets.items():
            waiting = bytearray(4)
            while True:
                fcntl.ioctl(fd, _SIOCOUTQ, waiting)
                if _has_ended(one):
                    raise self._no_place()
                if int.from_bytes(waiting, sys.byteorder) == 0:
                    break
                if time.monotonic() > end:
                    raise CaptureRefused(
                        f"pid {self._process.pid} does not answer: it is stopped; continue it"
                    )
                time.sleep(0.01)

    def filter(self, program: list[Instruction]) -> None:
        """Replaces the filter, and how much is kept of a frame: what the program returns last. A
        program that keeps nothing stops new frames, and those that wait stay whole."""
        kept = program[-1][3]
        self._kept = kept or self._kept
        keep = max(kept, _LEAST) if kept else 0
        whole = [
            (code, true, false, _LARGEST if code == _RETURN and operand else operand)
            for code, true, false, operand in program
        ]
        for one, sent in self._sockets.values():
            attach(one, whole)
            with contextlib.suppress(OSError):  # the process has ended
                one.send(_REQUEST.pack(_VERSION, sent, keep))

    def holds(self, blocks: int) -> bool:
        """Whether frames wait (1), or have filled so many blocks in a row."""
        return bool(self._ready(0)) if blocks == 1 else self._full >= blocks

    def _ready(self, timeout: float) -> list[int]:
        waiter = select.poll()
        for fd in self._sockets:
            waiter.register(fd, select.POLLIN)
        return [fd for fd, _ in waiter.poll(timeout * 1000)]

    def blocks(self, timeout: float) -> Iterator[list[Frame]]:
        """Yields blocks of frames. Waits up to `timeout` seconds if there is none. The memory of a
        block is used again for the next one."""
        ready = self._ready(timeout)
        for _ in range(self.size):
            block = sorted(self._block(ready), key=lambda frame: frame.when)
            self._full = self._full + 1 if len(block) >= _BLOCK // 2 else 0
            if not block:
                return
            yield block
            ready = self._ready(0)

    def _block(self, ready: list[int]) -> Iterator[Frame]:
        """No socket keeps the others waiting."""
        at = 0
        for place, fd in enumerate(ready, 1):
            one, sent = self._sockets[fd]
            end = _ARENA * place // len(ready)
            for _ in range(_BLOCK // len(ready)):
                if at + _LARGEST > end:
                    break
                try:
                    got, extra, _, _ = one.recvmsg_into([self._arena[at : at + _LARGEST]], 64)
                except BlockingIOError:
                    break
                except OSError:
                    got = 0
                if not got:
                    one.close()
                    del self._sockets[fd]
                    break
                data = self._arena[at : at + got]
                when = next((_TIME.unpack(told) for _, _, told in extra), None)
                seconds, ns = when or divmod(time.time_ns(), 10**9)
                yield Frame(seconds * 10**9 + ns, sent, _length(data), data[: self._kept])
                at += got

    def lost(self) -> int:
        """The number of frames that the process could not copy since the last call."""
        try:
            missed = statfile.read(Path(self._process.path)).totals.get("capture_lost", 0)
        except (OSError, statfile.StatError):
            return 0  # the process has ended
        missed, self._missed = missed - self._missed, missed
        return missed

    def close(self) -> None:
        for one, _ in self._sockets.values():
            one.close()
        self._sockets.clear()
