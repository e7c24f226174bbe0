# SPDX-License-Identifier: Apache-2.0
"""The lock of a folder: one set-up of a host changes it at a time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

from harp.setup.steps import StepError

WAIT_S = 30.0  # for other set-ups to end: the prologs of several jobs, or the service at boot
_AGAIN_S = 0.1


def _is_there(fd: int, folder: Path) -> bool:
    """Whether the path still leads to this folder."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(folder))
    except FileNotFoundError:
        return False


def _taken(folder: Path) -> Optional[int]:
    """A descriptor that locks the folder; None if another process has the lock, or has removed
    the folder."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_there(fd, folder):
            return fd
    except BlockingIOError:
        pass
    os.close(fd)
    return None


@contextmanager
def only_one(place: Callable[[], Path]) -> Iterator[None]:
    """Locks the folder that `place` names, against other set-ups. Waits while another one runs.
    `place` is asked again each time, because the other one may make or remove folders. Raises
    StepError if the other one does not end."""
    end = time.monotonic() + WAIT_S
    while True:
        folder = place()
        fd = _taken(folder)
        if fd is not None:
            if place() == folder:
                break
            os.close(fd)
        if time.monotonic() > end:
            raise StepError(f"another harp setup is changing {folder}; wait until it ends")
        time.sleep(_AGAIN_S)
    try:
        yield
    finally:
        os.close(fd)
