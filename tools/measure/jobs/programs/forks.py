# SPDX-License-Identifier: Apache-2.0
"""Ranks that run in forks of one process, so that PyTorch is loaded once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any


def tell(**record: Any) -> None:
    """Prints a record for the command that started this program."""
    print(json.dumps(record), flush=True)


def serve(run: Callable[[Sequence[str]], None]) -> None:
    """Reads a line of words for each run. Calls `run` with them in a fork, and prints the fork's
    pid, and at last its exit status."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(line.split())
            sys.stdout.flush()
            os._exit(0)
        tell(pid=child)
        _, status = os.waitpid(child, 0)
        tell(status=os.waitstatus_to_exitcode(status))
