# SPDX-License-Identifier: Apache-2.0
"""The C library of collectives by ctypes, for programs without PyTorch. It is the first argument of
their command lines. Numbers and structures are those of collectives.h."""

from __future__ import annotations

import ctypes as c
import sys

ERROR, HANDLE, NAME = 768, 160, 80

library = c.CDLL(sys.argv[1])
error = c.create_string_buffer(ERROR)


class View(c.Structure):
    _fields_ = [("data", c.c_void_p), ("bytes", c.c_size_t)]


class Call(c.Structure):
    _fields_ = [
        *[(name, c.c_int32) for name in ("kind", "dtype", "reduction", "peer", "tag", "waits")],
        ("timeout_ms", c.c_int64),
        ("inputs", c.POINTER(View)),
        ("outputs", c.POINTER(View)),
    ]


for name in ("harp_group_create", "harp_post"):
    getattr(library, name).restype = c.c_void_p
