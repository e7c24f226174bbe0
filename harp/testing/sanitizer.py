# SPDX-License-Identifier: Apache-2.0
"""Running under the address sanitizer: what a program of HARP's needs that Python must not have."""

from __future__ import annotations

import os
from typing import Dict


def active() -> bool:
    """Whether this process runs with the address sanitizer's runtime loaded before it."""
    return "libasan" in os.environ.get("LD_PRELOAD", "")


def program_environment() -> Dict[str, str]:
    """The environment for a C program of HARP's own.

    Such a program brings its runtime with it and is asked to report leaks at its
    end, which Python, with its memory that nobody frees, cannot be. The same as
    this process's environment where no sanitizer is active.
    """
    environment = dict(os.environ)
    if active():
        del environment["LD_PRELOAD"]
        options = environment.get("ASAN_OPTIONS", "")
        environment["ASAN_OPTIONS"] = f"{options}:detect_leaks=1"
    return environment
