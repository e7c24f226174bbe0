# SPDX-License-Identifier: Apache-2.0
"""The ranks of a run of harp perf."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Callable, Optional

from harp import paths
from tools.hosts.ports import random_port


def free_port() -> int:
    """A port that the kernel gives to no other program before rank 0 listens there."""
    while True:
        port = random_port()
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Run:
    """The ranks of one run, on this machine."""

    def __init__(
        self,
        args: Sequence[object],
        ranks: int = 2,
        environment: Optional[Mapping[str, str]] = None,
        told: bool = True,
        starter: Callable[[int], Sequence[str]] = lambda rank: (),
    ) -> None:
        """told: options set the ranks; else a launcher's variables in environment do, in which
        {rank} stands for the rank's number. starter: a command of a rank that runs the rest of its
        words."""
        rendezvous = f"127.0.0.1:{free_port()}"
        self.processes = []
        for rank in range(ranks):
            more = {k: v.format(rank=rank) for k, v in (environment or {}).items()}
            where = ["--rank", rank, "--nranks", ranks, "--rendezvous", rendezvous] if told else []
            self.processes.append(
                subprocess.Popen(
                    [str(word) for word in (*starter(rank), paths.perf_program(), *args, *where)],
                    env={**os.environ, "NCCL_SOCKET_IFNAME": "lo", **more},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def finish(self, timeout: float = 60) -> list[tuple[int, str, str]]:
        """Exit status, standard output and errors of each rank. Ranks that do not end in time are
        killed."""
        ended = []
        try:
            for process in self.processes:
                out, err = process.communicate(timeout=timeout)
                ended.append((process.returncode, out, err))
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        return ended


def statuses(ended: list[tuple[int, str, str]]) -> list[int]:
    return [status for status, _, _ in ended]
