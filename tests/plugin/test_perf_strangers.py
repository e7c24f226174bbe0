# SPDX-License-Identifier: Apache-2.0
"""Any host may connect to the rendezvous of harp perf. It delays no rank."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from contextlib import ExitStack

from perf_ranks import free_port

from harp import paths
from tools.hosts.ranks import wait_until

HELLO = struct.Struct("=Iii")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_silent_strangers_delay_no_rank() -> None:
    """One after the other, they would take a second each. One
    sends a hello of another program, and one a part of a hello."""
    port = free_port()
    args = [str(paths.perf_program()), "pingpong", "--sizes", "8:5", "--nranks", "2"]
    args += ["--plugin", str(paths.kernel_plugin_path()), "--timeout", "20"]
    args += ["--rendezvous", f"127.0.0.1:{port}", "--rank"]

    def start(rank: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*args, rank],
            env={**os.environ, "NCCL_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    ranks = [start("0")]
    try:
        wait_until(lambda: listens(port), 20, "rank 0 does not listen", [])
        with ExitStack() as stack:
            for number in range(80):
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
                if number == 0:
                    sock.sendall(HELLO.pack(7, 1, 2))
                    assert sock.recv(1) == b""
                if number == 1:
                    sock.sendall(b"FRPH")
            ranks.append(start("1"))
            said = [rank.communicate(timeout=60)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], said
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
