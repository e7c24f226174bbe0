# SPDX-License-Identifier: Apache-2.0
"""A thousand stacks come and go in one process."""

from __future__ import annotations

import ctypes

M_MMAP_THRESHOLD = -3  # <malloc.h>


def pytest_configure() -> None:
    """Gives each stack's pools memory of their own, which goes back when the stack does.

    glibc would move its threshold up and keep pools in the heap, in holes that
    each leave a little too small for the next stack: a gigabyte by the end.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 128 * 1024)
