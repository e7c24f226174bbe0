# SPDX-License-Identifier: Apache-2.0
"""The kernels' own TCP between two hosts of a lab, like a copy of files: iperf3 at a bounded rate,
one run after another."""

from __future__ import annotations

import subprocess
import threading
from types import TracebackType
from typing import Optional, Type

from tools.hosts.lab import Lab, LabError
from tools.measure.iperf import send, serve

OPTIONS = ("-b", "20M", "-n", "1M")  # bit/s, which leave the cores to the ranks; bytes of a run
RUN_S = 60.0  # for a run, on a busy machine


class KernelStream:
    """Runs of iperf3 from host 0 to host 1 during a `with` block, at least one. Afterwards, `runs`
    has their number, and `received` the bytes that came to host 1. Raises LabError if a run
    fails."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)
        self._failure: Optional[str] = None
        self.runs = 0
        self.received = 0

    def __enter__(self) -> KernelStream:
        self._thread.start()
        return self

    def _repeat(self) -> None:
        try:
            while self.runs == 0 or not self._over.is_set():
                server = serve(self._lab.hosts[1])
                self.received += send(self._lab, OPTIONS, RUN_S)["sum_received"]["bytes"]
                server.communicate(timeout=RUN_S)
                self.runs += 1
        except (LabError, subprocess.TimeoutExpired) as failure:
            self._failure = str(failure)

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._over.set()
        self._thread.join()  # each step of a run has a limit
        if self._failure and kind is None:
            raise LabError(f"the kernels' stream: {self._failure}")
