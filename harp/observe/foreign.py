# SPDX-License-Identifier: Apache-2.0
"""Files that any user of the host may have written, and may still be writing.

They are read into memory, never mapped: a mapped file that is truncated ends its reader by
SIGBUS. Text from them goes to root's terminal, so it must not hold what a terminal obeys.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


class ForeignError(ValueError):
    """A file that is not what it should be, in a sentence."""


def text(raw: bytes) -> str:
    """A C string; what is not printable (escapes, line ends, marks that turn the direction of
    writing) is written as Python writes it: `\\x1b`."""
    decoded = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in decoded
    )


def open_file(path: Path) -> int:
    """A descriptor of a regular file, for reading; no link, and nothing that makes one wait.
    Raises OSError, or ForeignError for what is no file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ForeignError(f"{path}: no file")
    return fd


def read_fd(path: Path, fd: int, most: int) -> bytes:
    """What is in the file now. Raises ForeignError if that is more than `most` bytes."""
    size = os.fstat(fd).st_size
    if size > most:
        raise ForeignError(f"{path}: {size} bytes, larger than such a file can be")
    parts = []
    offset = 0
    while offset < size:
        part = os.pread(fd, size - offset, offset)
        if not part:
            break  # it was truncated meanwhile
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def read(path: Path, most: int) -> bytes:
    """A file's bytes, at most so many. Raises OSError or ForeignError."""
    fd = open_file(path)
    try:
        return read_fd(path, fd, most)
    finally:
        os.close(fd)
