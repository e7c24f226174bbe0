# SPDX-License-Identifier: Apache-2.0
"""Capabilities of processes (capabilities(7))."""

from __future__ import annotations

# Linux, capability.h
NUMBERS = {
    "setgid": 6, "setuid": 7, "setpcap": 8, "net_admin": 12, "net_raw": 13, "ipc_lock": 14,
    "sys_admin": 21, "bpf": 39,
}  # fmt: skip


def effective(status: str) -> int:
    """The effective capabilities, as bits. status: the text of a /proc/PID/status
    (proc_pid_status(5))."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
