# SPDX-License-Identifier: Apache-2.0
"""Asks a running agent for its status, or whether the caller may use it."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

from harp.agent import reply
from harp.agent.request import VERSION

SOCKET = Path("/run/harp/agent.sock")
TIMEOUT_S = 5
ROOM = 1 << 16


def socket_path() -> Path:
    """Where this process's agent listens: HARP_AGENT, or the usual place."""
    return Path(os.environ.get("HARP_AGENT") or SOCKET)


class AgentRefused(OSError):
    """The agent has answered with an error; strerror has its words."""


def ask(path: Path, what: str, timeout_s: int = TIMEOUT_S) -> Any:
    """The agent's answer to "status" or "hello". Raises OSError, and AgentRefused if the agent
    refuses. timeout_s: of each step."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        # Not by settimeout: connect would fail at once if the agent's queue is full.
        for limit in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", timeout_s, 0))
        try:
            connection.connect(str(path))
            connection.send(json.dumps({"version": VERSION, "op": what}).encode())
            answer = connection.recv(ROOM)
        except BlockingIOError:
            raise TimeoutError(errno.ETIMEDOUT, "the agent does not answer") from None
    if not answer:
        raise ConnectionResetError(errno.ECONNRESET, "the agent closed the connection")
    refused = reply.read_error(answer)
    if refused:
        raise AgentRefused(*refused)
    return json.loads(answer)
