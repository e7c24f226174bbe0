# SPDX-License-Identifier: Apache-2.0
"""A busy host: each core also runs a compute loop, as the data loaders of a training job do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tools.hosts.lab import Host

# The kernel ends the loop with the process that started it, even if that one is killed.
LOOP = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit()
os.sched_setaffinity(0, {int(sys.argv[2])})
print("ready", flush=True)
while True:
    pass
"""


@contextmanager
def compute_loops(host: Host) -> Iterator[None]:
    """Runs a compute loop on each core during the block, at this process's nice value."""
    loops: list[subprocess.Popen[str]] = []
    try:
        for core in sorted(os.sched_getaffinity(0)):
            args = [sys.executable, "-c", LOOP, os.getpid(), core]
            loops.append(host.popen(args, stdout=subprocess.PIPE))
        for loop in loops:
            assert loop.stdout
            loop.stdout.readline()
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
            if loop.stdout:
                loop.stdout.close()
