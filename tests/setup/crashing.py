# SPDX-License-Identifier: Apache-2.0
"""Runs harp and kills it by SIGKILL before its n-th change to disk or kernel.

python crashing.py N setup apply ...
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harp.cli.main import main
from harp.setup import bootline, host, kernel

# The calls that change something: all of a function, or those with one of these arguments.
CHANGES: list[tuple[Any, str, set[str]]] = [
    (os, "replace", set()),
    (os, "rename", set()),
    (os, "mkdir", set()),
    (os, "chmod", set()),
    (os, "unlink", set()),
    (os, "rmdir", set()),
    (Path, "write_text", set()),
    (host, "ip", {"add", "del", "set", "replace"}),
    (kernel, "run_tool", {"modprobe"}),
    (bootline, "run_tool", {"update-grub"}),
]


def _is_query(words: tuple[Any, ...]) -> bool:
    return "--dry-run" in words or "--show-depends" in words


def die_before(change: int) -> None:
    """Makes this process kill itself before a change. Changes count from 0."""
    left = change

    def counted(function: Callable[..., Any], marks: set[str]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if not marks or (marks & set(arguments) and not _is_query(arguments)):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for owner, name, marks in CHANGES:
        setattr(owner, name, counted(getattr(owner, name), marks))


if __name__ == "__main__":
    die_before(int(sys.argv[1]))
    main(sys.argv[2:])
