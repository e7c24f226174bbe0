# SPDX-License-Identifier: Apache-2.0
"""Reads files that any user of the host may have written, or may be writing now.

The files are copied into memory, not mapped: a mapped file that another user truncates kills its
reader by SIGBUS. Their text may go to root's terminal, so it must not contain control characters.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


class ForeignError(ValueError):
    """The file has the wrong type or size. The text says which."""


def text(raw: bytes) -> str:
    """A C string as text. Characters that are not printable (escapes, line ends, marks of writing
    direction) become Python escapes such as `\\x1b`."""
    decoded = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in decoded
    )


def open_file(path: Path, follow: bool = False) -> int:
    """Opens a regular file for reading, and returns the descriptor. Never blocks, and never opens a
    device, whose opening may have an effect. follow: follows links, as those of /proc/PID/fd.
    Raises OSError, or ForeignError for another type of file."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise ForeignError(f"{path}: not a regular file")
        # By this path, nobody can put another file into its place.
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as failure:
        raise OSError(failure.errno, failure.strerror, str(path)) from failure
    finally:
        os.close(place)


def read_fd(path: Path, fd: int, most: int) -> bytes:
    """The file's present bytes. Raises ForeignError if there are more than `most`."""
    size = os.fstat(fd).st_size
    if size > most:
        raise ForeignError(f"{path}: {size} bytes are too many for such a file (at most {most})")
    parts = []
    offset = 0
    while offset < size:
        part = os.pread(fd, size - offset, offset)
        if not part:
            break  # truncated since the fstat
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def read(path: Path, most: int, follow: bool = False) -> bytes:
    """The bytes of a file with at most `most` of them. Raises OSError or ForeignError."""
    fd = open_file(path, follow)
    try:
        return read_fd(path, fd, most)
    finally:
        os.close(fd)
