# SPDX-License-Identifier: Apache-2.0
"""Makes folders as root, safely in folders that other users can write to.

The path is walked folder by folder, each by its descriptor. In a world-writable folder, links are
not followed, and the next folder must belong to root or to this user: another user could have
replaced it between a check and its use.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class FolderError(RuntimeError):
    """A part of the path may be another user's. The text says which."""


def make_folder(path: str, mode: int) -> None:
    """Makes the folder, with `mode` as its permission bits, and its missing parents. Raises
    FolderError or OSError."""
    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = Path(os.path.abspath(path)).parts[1:]
        for name in names[:-1]:
            at = _replace(at, _enter(at, name, 0o755, path, os.O_PATH, _is_everybodys(at)))
        at = _replace(at, _enter(at, names[-1], mode, path, os.O_RDONLY, True))
        os.fchmod(at, mode)
    finally:
        os.close(at)


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new


def _is_everybodys(fd: int) -> bool:
    return bool(os.fstat(fd).st_mode & stat.S_IWOTH)


def _make(at: int, name: str, mode: int) -> None:
    """Makes a folder that has these permission bits at once: a set-up that finds a folder after a
    crash leaves it as it is. Raises FileExistsError."""
    before = os.umask(0)
    try:
        os.mkdir(name, mode, dir_fd=at)
    finally:
        os.umask(before)


def _enter(at: int, name: str, mode: int, path: str, how: int, wary: bool) -> int:
    """Opens the folder `name` in `at`, and makes it if it is missing. `wary`: follow no link, and
    check the owner. Returns the descriptor, which the caller closes."""
    try:
        _make(at, name, mode)
        wary = True
    except FileExistsError:
        pass
    flags = how | os.O_DIRECTORY | os.O_CLOEXEC | (os.O_NOFOLLOW if wary else 0)
    try:
        fd = os.open(name, flags, dir_fd=at)
    except OSError as failure:
        if failure.errno in (errno.ELOOP, errno.ENOTDIR):
            raise FolderError(
                f"{path}: {name} is a link or file, not a folder, and other users could have put "
                "it there: remove it, or choose another folder"
            ) from failure
        raise
    owner = os.fstat(fd).st_uid
    if wary and owner not in (0, os.geteuid()):
        os.close(fd)
        raise FolderError(
            f"{path}: {name} belongs to user {owner}: remove it, or choose another folder"
        )
    return fd
