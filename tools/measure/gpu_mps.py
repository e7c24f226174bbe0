# SPDX-License-Identifier: Apache-2.0
"""CUDA's Multi-Process Service (MPS) for the two ranks of tools/gpu.

A GPU runs kernels of one process at a time, and switches every few milliseconds. Kernels of NCCL
that wait for each other then wait for the switch. With MPS they run at the same time. Source:
NVIDIA, Multi-Process Service, sections "Starting and Stopping MPS" and "Environment Variables".
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
DRIVER_FOLDER = "/usr/local/nvidia/bin"
START_S, END_S = 10.0, 10.0


def _ask(program: str, command: str, environment: dict[str, str]) -> bool:
    """Sends a command to the daemon. True if it answers with success."""
    try:
        done = subprocess.run(
            [program], input=command, text=True, capture_output=True, env=environment, timeout=END_S
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@contextlib.contextmanager
def mps(folder: Path) -> Iterator[dict[str, str]]:
    """Runs a daemon of its own and yields the variables for its clients.

    Yields no variables if the program is not installed, or the daemon does not answer. The
    daemon's log goes to the folder.
    """
    program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path=DRIVER_FOLDER)
    if program is None:
        yield {}
        return
    # The path of a UNIX socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="harp-mps-") as pipes:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": pipes}
        log = folder / "mps"
        log.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **variables, "CUDA_MPS_LOG_DIRECTORY": str(log)}
        with open(log / "output", "wb") as output:
            daemon = subprocess.Popen(
                [program, "-f"], env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            limit = time.monotonic() + START_S
            answers = False
            while not answers and daemon.poll() is None and time.monotonic() < limit:
                answers = _ask(program, "get_server_list\n", environment)
                time.sleep(0.1)
            yield variables if answers else {}
        finally:
            _ask(program, "quit -t 1\n", environment)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)  # its server, too
            daemon.wait()
