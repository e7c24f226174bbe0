# SPDX-License-Identifier: Apache-2.0
"""The kernels' own TCP between two hosts of a lab, like the keystrokes of an ssh session: short
lines, each of which the other host sends back."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Optional, Type

from tools.hosts.lab import Host, Lab, LabError

PORT = 29422
TOO_SLOW_S = 5.0  # for a round trip: a rank that is busy does not delay the kernel that long
END_S = 30.0  # for the last round trip

ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("ready", flush=True)
    end, _ = server.accept()
    with end:
        while line := end.recv(4096):
            end.sendall(line)
"""
# Prints the number of lines that came back, and the longest wait in seconds, at the end of its
# input.
TALK = """
import json, select, socket, sys, time
trips, longest = 0, 0.0
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 10) as end:
    print("talking", flush=True)
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        began = time.monotonic()
        back = b""
        try:
            end.sendall(b"%63d\\n" % trips)
            while len(back) < 64:
                back += end.recv(64 - len(back)) or sys.exit("the connection ended")
        except ConnectionError as failure:
            sys.exit(f"the connection ended: {failure}")
        assert int(back) == trips
        trips, longest = trips + 1, max(longest, time.monotonic() - began)
print(json.dumps([trips, longest]), flush=True)
"""


class KernelTalk:
    """A conversation from host 0 to host 1 during a `with` block. Afterwards, `trips` has the
    lines that came back, and `longest_s` the longest wait for one. Raises LabError if the
    connection breaks."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.trips = 0
        self.longest_s = 0.0

    def __enter__(self) -> KernelTalk:
        first, second = self._lab.hosts[:2]
        self._echo = self._start(second, ECHO, "ready")
        self._talk = self._start(first, TALK, "talking")
        return self

    def _start(self, host: Host, program: str, mark: str) -> "subprocess.Popen[str]":
        args = [sys.executable, "-c", program, self._lab.hosts[1].address, PORT]
        pipe = subprocess.PIPE
        process = host.popen(args, stdin=pipe, stdout=pipe, stderr=pipe)
        assert process.stdout
        if process.stdout.readline() != f"{mark}\n":
            process.kill()
            raise LabError(f"host {host.index}: {process.communicate()[1]}")
        return process

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            said, wrong = self._talk.communicate("end\n", timeout=END_S)
        except subprocess.TimeoutExpired:
            self._talk.kill()
            said, wrong = "", f"no answer for {END_S} s"
            self._talk.communicate()
        try:
            self._echo.wait(END_S)  # it sends a FIN
        except subprocess.TimeoutExpired:
            self._echo.kill()
        self._echo.communicate()
        if said:
            self.trips, self.longest_s = json.loads(said)
        elif kind is None:
            raise LabError(f"the kernels' connection: {wrong}")
