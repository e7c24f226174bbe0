# SPDX-License-Identifier: Apache-2.0
"""A new network namespace for this thread, and a TUN device in it. Both need root."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from pathlib import Path

TUN = Path("/dev/net/tun")

_CLONE_NEWNET = 0x40000000  # <sched.h>
_TUNSETIFF = 0x400454CA  # <linux/if_tun.h>
_IFF_TUN_NO_PI = 0x1001
_LIBC = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def unshare_network() -> None:
    """Moves this thread to a new network namespace, which ends with its last descriptor."""
    _check(_LIBC.unshare(_CLONE_NEWNET))


def enter_network(namespace: int) -> None:
    """Moves this thread to the network namespace of the descriptor."""
    _check(_LIBC.setns(namespace, _CLONE_NEWNET))


def open_tun(name: str) -> int:
    """Makes a TUN device and returns its non-blocking descriptor. Each read or write is one IP
    packet."""
    fd = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
    except OSError:
        os.close(fd)
        raise
    return fd
