# SPDX-License-Identifier: Apache-2.0
"""Transfers between two hosts of a lab over the kernel's TCP, with hashes of the bytes."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.hosts.lab import Host

PROGRAM = Path(__file__).with_name("tcp_transfer.py")
PORT = 5000


@dataclass(frozen=True)
class Transfer:
    """The count and hash of the bytes at both ends."""

    sent: str
    received: str


def transfer(sender: Host, receiver: Host, total: int, seed: int = 1) -> Transfer:
    """Moves `total` bytes within 60 s. The caller compares the hashes."""
    address = receiver.address
    listening = receiver.popen(
        [sys.executable, PROGRAM, "receive", address, PORT], stdout=subprocess.PIPE
    )
    assert listening.stdout and listening.stdout.readline() == "listening\n"
    sent = sender.run([sys.executable, PROGRAM, "send", address, PORT, total, seed], timeout=60)
    received, _ = listening.communicate(timeout=60)
    return Transfer(sent.stdout.strip(), received.strip())
