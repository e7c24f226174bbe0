#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""harp-agent-open of a later release, for newer_agent.py: its replies have more members at their
end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

VERSION = 2
MORE = b"members of a later release" * 8
ROOM = 4096
REAL = "HARP_TEST_REAL_OPENER"  # names the real program


def main() -> int:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        done = subprocess.run([os.environ[REAL], *sys.argv[1:]], stdin=far, check=False)
        near.setblocking(False)
        try:
            data, fds, _, _ = socket.recv_fds(near, ROOM, 80)
        except BlockingIOError:  # a port is in use: there is no reply
            return done.returncode
    longer = data[:4] + VERSION.to_bytes(2, sys.byteorder) + data[6:] + MORE
    with socket.socket(fileno=0) as client:
        socket.send_fds(client, [longer], fds)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
