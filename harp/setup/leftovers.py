# SPDX-License-Identifier: Apache-2.0
"""The files that HARP's processes make in the run folder. harp/engine/rundir.h has their names."""

from __future__ import annotations

import fcntl
import os
import re
import stat

_NAME = re.compile(r"[0-9a-f]{16}\.(stat|new|trace)")
_SOCKET = re.compile(r"([0-9a-f]{16})-[0-9]+\.capture")


def are_alone_in(folder: str) -> bool:
    """Whether the folder holds nothing but these files. Raises OSError."""
    return all(_NAME.fullmatch(name) or _SOCKET.fullmatch(name) for name in os.listdir(folder))


def is_locked(fd: int) -> bool:
    """Whether a process holds a lock on the file (flock). `fd` holds one afterwards if not."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _is_left(folder: int, name: str) -> bool:
    """Whether HARP has made the file, and no running process keeps it."""
    socket = _SOCKET.fullmatch(name)
    if socket:  # it is kept as long as the statistics file
        try:
            return _is_left(folder, f"{socket[1]}.stat")
        except FileNotFoundError:
            return stat.S_ISSOCK(os.lstat(name, dir_fd=folder).st_mode)
    if not _NAME.fullmatch(name):
        return False
    # Every user may put a link or a FIFO there.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(name, flags, dir_fd=folder)
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode) and not is_locked(fd)
    finally:
        os.close(fd)


def remove(folder: str) -> None:
    """Removes the files of ended processes if the folder holds nothing else. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    at = os.open(folder, flags)
    try:
        names = os.listdir(at)
        if all(_is_left(at, name) for name in names):
            for name in names:
                os.unlink(name, dir_fd=at)
    finally:
        os.close(at)
