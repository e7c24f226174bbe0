# SPDX-License-Identifier: Apache-2.0
"""Makes folders as root where others may be at work at the same moment.

A path is walked folder by folder, each by its descriptor. Where everybody may write, a link
is not followed, and a folder has to be ours or root's: somebody may have put it there between
a look and the call that relies on it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class FolderError(RuntimeError):
    """A folder that others may have put in ours' place, in a sentence."""


def make_folder(path: str, mode: int) -> None:
    """The folder, with `mode` as its permission bits, and those above it that are missing.
    Raises FolderError or OSError."""
    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = Path(os.path.abspath(path)).parts[1:]
        for name in names[:-1]:
            at = _replace(at, _enter(at, name, path, os.O_PATH, _is_everybodys(at)))
        at = _replace(at, _enter(at, names[-1], path, os.O_RDONLY, True))
        os.fchmod(at, mode)
    finally:
        os.close(at)


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new


def _is_everybodys(fd: int) -> bool:
    return bool(os.fstat(fd).st_mode & stat.S_IWOTH)


def _enter(at: int, name: str, path: str, how: int, wary: bool) -> int:
    """A descriptor of the folder `name` below `at`, which is made if it is not there."""
    try:
        os.mkdir(name, 0o755, dir_fd=at)
        wary = True
    except FileExistsError:
        pass
    flags = how | os.O_DIRECTORY | os.O_CLOEXEC | (os.O_NOFOLLOW if wary else 0)
    try:
        fd = os.open(name, flags, dir_fd=at)
    except OSError as failure:
        if failure.errno in (errno.ELOOP, errno.ENOTDIR):
            raise FolderError(
                f"{path}: {name} is no folder but a link, where others may have put "
                "one: remove it, or name another folder"
            ) from failure
        raise
    owner = os.fstat(fd).st_uid
    if wary and owner not in (0, os.geteuid()):
        os.close(fd)
        raise FolderError(
            f"{path}: {name} belongs to user {owner}: remove it, or name another folder"
        )
    return fd
