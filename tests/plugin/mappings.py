# SPDX-License-Identifier: Apache-2.0
"""The memory of this process: mappings and malloc."""

from __future__ import annotations

import ctypes
from pathlib import Path


class MallocInfo(ctypes.Structure):
    """struct mallinfo2"""

    _fields_ = [("values", ctypes.c_size_t * 10)]


def mappings() -> tuple[list[list[str]], list[list[str]]]:
    """This process's file mappings and its other mappings, as fields of /proc/self/maps. The second
    list is empty with a sanitizer, which has such mappings of its own."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    named = [fields for fields in lines if len(fields) > 5 and not fields[5].startswith("[")]
    sanitized = any("san.so" in fields[5] for fields in named)
    return named, [] if sanitized else [fields for fields in lines if fields not in named]


def heap() -> int:
    """Bytes in use from malloc; 0 with a sanitizer, which replaces malloc."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallocInfo
    return mallinfo().values[7]  # uordblks
