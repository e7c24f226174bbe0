# SPDX-License-Identifier: Apache-2.0
"""Finds the statistics files that running processes publish, by /proc.

A process in a container may have its file in a folder that the host does not see, or without any
path. Its descriptor leads to the file all the same. Only root, or a process with CAP_SYS_PTRACE,
sees the descriptors of other users' processes.

Any user may hold such descriptors, also of files that belong to others, and under names of its
choice. So only the holder of a file's lock counts: that is the process that writes the file, and no
other can have the lock meanwhile. What is found counts for the user who runs that process.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Optional

# What the kernel shows for a file in a folder, for one without a path, and for a removed one.
_TARGET = re.compile(r"/(?:.*/|memfd:)?([0-9a-f]{16}\.stat)(?: \(deleted\))?", re.DOTALL)
_USER = re.compile(rb"^Uid:\t(\d+)", re.MULTILINE)
_LOCK = re.compile(rb"^lock:\t\d+: FLOCK +\S+ +WRITE ", re.MULTILINE)
_OF_PROCESS_MOST = 4096  # descriptors that are looked at: HARP opens its file early
DESCRIPTORS_MOST = 1 << 18  # of all processes of a user


class Published(NamedTuple):
    """A statistics file that a process publishes: the file's name, its path in /proc, which is a
    link to the file, and the id of the user who runs the process."""

    name: str
    path: Path
    user: int


def real_user(process: Path) -> Optional[int]:
    """The real user id of a process: a set-user-ID program keeps that of the user who started it.
    The owner of the folder does not tell: it is root if the process may not be dumped. None if the
    process has ended."""
    try:
        found = _USER.search((process / "status").read_bytes())
    except OSError:
        return None
    return int(found[1]) if found else None


def _numbers(process: Path, most: int) -> list[str]:
    try:
        with os.scandir(process / "fd") as entries:
            return [entry.name for entry in islice(entries, most)]
    except OSError:
        return []  # it has ended, or it belongs to another user


def _name(process: Path, number: str) -> Optional[str]:
    """The name of the statistics file whose lock this descriptor holds."""
    try:
        target = _TARGET.fullmatch(os.readlink(process / "fd" / number))
        if target and _LOCK.search((process / "fdinfo" / number).read_bytes()):
            return target[1]
    except OSError:
        pass
    return None


def statistics_files(proc: Path = Path("/proc")) -> Iterator[Published]:
    """The statistics files that processes publish. A file appears once for each descriptor of the
    lock. Looks at no more than `DESCRIPTORS_MOST` descriptors of a user."""
    looked: Counter[int] = Counter()
    for pid in sorted(filter(str.isdecimal, os.listdir(proc)), key=int):
        process = proc / pid
        user = real_user(process)
        if user is None:
            continue
        numbers = _numbers(process, min(_OF_PROCESS_MOST, DESCRIPTORS_MOST - looked[user]))
        looked[user] += len(numbers)
        for number in numbers:
            name = _name(process, number)
            if name:
                yield Published(name, process / "fd" / number, user)
