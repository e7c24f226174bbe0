#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command under the rules of a container's seccomp profile for one system call:
seccomp_run.py RULES COMMAND… . All other system calls are allowed. x86-64 and 64-bit ARM."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import struct
import sys
from pathlib import Path

NUMBERS = {"x86_64": 54, "aarch64": 208}  # setsockopt
ALLOW, EPERM = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
ARGUMENTS = 16  # offset in struct seccomp_data


def code(rules: list[dict[str, object]]) -> bytes:
    """The filter. Each rule compares one whole argument of setsockopt with a small number."""
    lines = [(LOAD, 0, 0, 0)]
    body: list[tuple[int, int, int, int]] = []
    for rule in rules:
        (compared,) = rule["args"]  # type: ignore[misc]
        assert rule["names"] == ["setsockopt"] and rule["action"] == "SCMP_ACT_ALLOW"
        assert compared["op"] == "SCMP_CMP_EQ"
        at = ARGUMENTS + 8 * compared["index"]
        body += [(LOAD, 0, 0, at + 4), (EQUAL, 0, 3, 0), (LOAD, 0, 0, at)]
        body += [(EQUAL, 0, 1, compared["value"]), (RETURN, 0, 0, ALLOW)]
    body.append((RETURN, 0, 0, EPERM))
    lines += [(EQUAL, 0, len(body), NUMBERS[platform.machine()]), *body, (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def main() -> None:
    data = code(json.loads(Path(sys.argv[1]).read_text()))
    held = ctypes.create_string_buffer(data)
    program = ctypes.create_string_buffer(struct.pack("HL", len(data) // 8, ctypes.addressof(held)))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) or libc.prctl(
        PR_SET_SECCOMP, ctypes.c_ulong(FILTER), program, zero, zero
    ):
        raise OSError(ctypes.get_errno(), "prctl")
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
