# SPDX-License-Identifier: Apache-2.0
"""Loaded by every Python that starts while the suite runs sanitized (tools/test puts this
folder on PYTHONPATH).

A Python that loads modules built with the address sanitizer needs its runtime
before anything else: each one starts itself again with the runtime preloaded.
Only itself: were the preload inherited, the sanitizer would judge ip and sh too.
Python leaks by design, so it is not asked about leaks; HARP's own programs,
which bring their runtime with them, are.

SANITIZER_RUNTIME: path of libasan.so. No name begins with HARP_: tests clear those.
"""

import os
import sys

PRELOAD = "LD_PRELOAD"
OPTIONS = "ASAN_OPTIONS"
KEPT_OPTIONS = "SANITIZER_KEPT_OPTIONS"


def start_again(runtime: str) -> None:
    options = os.environ.get(OPTIONS, "")
    environment = {
        **os.environ,
        PRELOAD: runtime,
        KEPT_OPTIONS: options,
        OPTIONS: f"{options}:detect_leaks=0",
    }
    os.execve(sys.executable, sys.orig_argv, environment)


def hide_from_children() -> None:
    del os.environ[PRELOAD]
    os.environ[OPTIONS] = os.environ.pop(KEPT_OPTIONS)


if KEPT_OPTIONS in os.environ:
    hide_from_children()
else:
    start_again(os.environ["SANITIZER_RUNTIME"])
