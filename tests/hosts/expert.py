# SPDX-License-Identifier: Apache-2.0
"""tshark's expert findings about a connection that was captured without loss."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Optional

from tools.hosts.lab import Host

SNAP = 128  # bytes kept of each frame: all headers
BUFFER_MIB = 256
WARNING = 0x600000  # tshark's severities: chat 2, note 4, warning 6, error 8


class Capture:
    """Records a host's TCP frames during a `with` block, for `findings` and `lost`.

    port: of the connection. Raises AssertionError if dumpcap does not start.
    """

    def __init__(self, host: Host, port: int, path: Path) -> None:
        self.host, self.port, self.path = host, port, path
        self.frames = 0
        self.lost = 0  # frames that the capture missed, for lack of time or memory

    def __enter__(self) -> Capture:
        self.process = self.host.popen(
            ["dumpcap", "-q", "-i", self.host.interface, "-s", str(SNAP),
             "-B", str(BUFFER_MIB), "-f", f"tcp port {self.port}", "-w", str(self.path)],
            stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stderr
        said = ""
        for line in self.process.stderr:
            said += line
            if line.startswith("File:"):
                return self
        raise AssertionError(f"dumpcap ended at once: {said}")

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        time.sleep(0.5)  # until dumpcap has written all frames
        self.process.terminate()
        _, said = self.process.communicate(timeout=30)
        counts = re.search(r"received/dropped on interface .*: (\d+)/(\d+)", said)
        assert counts, f"dumpcap does not report its losses: {said}"
        self.frames, self.lost = int(counts[1]), int(counts[2])

    def findings(self) -> Counter[str]:
        """The number of each finding at severity warning or above."""
        # The payload is random: no other dissector may try to decode it.
        done = subprocess.run(
            ["tshark", "-r", str(self.path), "-d", f"tcp.port=={self.port},data",
             "-Y", f"_ws.expert.severity >= {WARNING}",
             "-T", "fields", "-E", "aggregator=|",
             "-e", "_ws.expert.severity", "-e", "_ws.expert.message"],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: Counter[str] = Counter()
        for line in done.stdout.splitlines():
            severities, messages = line.split("\t")
            for severity, message in zip(severities.split("|"), messages.split("|")):
                if int(severity) >= WARNING:
                    found[message] += 1
        return found
