# SPDX-License-Identifier: Apache-2.0
"""Finds the statistics files that running processes hold open, by /proc.

A process in a container may have its file in a folder that the host does not see, or without any
path. Its descriptor leads to the file all the same. Only root, or a process with CAP_SYS_PTRACE,
sees the descriptors of other users' processes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

# What the kernel shows for a file in a folder, for one without a path, and for a removed one.
_TARGET = re.compile(r"/(?:.*/|memfd:)?([0-9a-f]{16}\.stat)(?: \(deleted\))?", re.DOTALL)
DESCRIPTORS_MOST = 4096  # of a process that are looked at: HARP opens its file early


def _descriptors(process: Path) -> Iterator[tuple[str, Path]]:
    try:
        with os.scandir(process / "fd") as entries:
            numbers = [entry.name for entry in islice(entries, DESCRIPTORS_MOST)]
    except OSError:
        return  # it has ended, or it belongs to another user
    for number in numbers:
        path = process / "fd" / number
        try:
            target = _TARGET.fullmatch(os.readlink(path))
        except OSError:
            continue
        if target:
            yield target[1], path


def statistics_files(proc: Path = Path("/proc")) -> Iterator[tuple[str, Path]]:
    """The name and the path in /proc of each statistics file that a process has open. A file
    appears once for each descriptor. The path is a link to the file."""
    for name in sorted(filter(str.isdecimal, os.listdir(proc)), key=int):
        yield from _descriptors(proc / name)
