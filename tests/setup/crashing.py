# SPDX-License-Identifier: Apache-2.0
"""Runs harp in child processes that are killed by SIGKILL before their n-th change to disk or
kernel. The children are forked with everything loaded, because Python takes long to start.

python crashing.py: reads lines of JSON, [n, "setup", "apply", ...], and answers each with a line
[status, output]. n is -1 for a child that is not killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harp.cli.main import main
from harp.setup import arp, bootline, command, host, kernel, lock

__all__ = ["command"]  # which main would load in each child

# The calls that change something: all of a function, or those with one of these arguments.
CHANGES: list[tuple[Any, str, set[str]]] = [
    (os, "replace", set()),
    (os, "rename", set()),
    (os, "mkdir", set()),
    (os, "chmod", set()),
    (os, "fchmod", set()),
    (os, "unlink", set()),
    (os, "rmdir", set()),
    (Path, "write_text", set()),
    (host, "ip", {"add", "del", "set", "replace"}),
    (kernel, "run_tool", {"modprobe"}),
    (bootline, "run_tool", {"update-grub"}),
]


def _is_query(args: tuple[Any, ...]) -> bool:
    return "--dry-run" in args or "--show-depends" in args


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


def run(change: int, args: Sequence[str]) -> tuple[int, str]:
    """Runs harp in a child process, killed before a change (a negative one: not killed). Returns
    its exit status, or minus the signal, and its output."""
    with tempfile.TemporaryFile("w+") as said:
        pid = os.fork()
        if not pid:
            _child(change, args, said.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said.seek(0)
        return status, said.read()


def _child(change: int, args: Sequence[str], said: int) -> None:
    os.dup2(said, 1)
    os.dup2(said, 2)
    code = 1
    try:
        if change >= 0:
            die_before(change)
        main(list(args))
    except SystemExit as end:
        code = int(end.code or 0)
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    arp.WAIT_S /= 100  # no test of crashes has a host that answers
    lock.WAIT_S = 0.5  # what has the lock in a test keeps it
    for line in sys.stdin:
        number, *asked = json.loads(line)
        print(json.dumps(run(number, asked)), flush=True)
