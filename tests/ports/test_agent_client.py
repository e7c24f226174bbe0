# SPDX-License-Identifier: Apache-2.0
"""A port that waits for the agent of its node while signals arrive."""

from __future__ import annotations

import array
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from packet_ports import Hosts, Make, listening
from port_probe import Probe

from tools.hosts.ranks import Program, Site, wait_until

BLOCK = 16  # most local ports of the first block
SIZE = 4096  # more than a message
DESCRIPTORS = 80


class LateAgent:
    """Passes requests to an agent. A request sets `asked`, and its reply waits for `released`."""

    def __init__(self, path: Path, behind: Path) -> None:
        self._behind = behind
        self.asked, self.released = threading.Event(), threading.Event()
        self.connections = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client = self._listener.accept()[0]
            self.connections += 1
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        room = socket.CMSG_SPACE(DESCRIPTORS * 4)
        with client, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
            agent.connect(str(self._behind))
            while request := client.recv(SIZE):
                agent.send(request)
                data, control, flags, _ = agent.recvmsg(SIZE, room)
                self.asked.set()
                self.released.wait(20)
                client.sendmsg([data], control)
                for _, _, rights in control:
                    for fd in array.array("i", rights):
                        os.close(fd)


@pytest.fixture
def agent(hosts: Hosts, tmp_path: Path) -> Iterator[Path]:
    """The socket of an agent on the first host."""
    path = tmp_path / "agent.sock"
    host = hosts("veth-1500")[0]
    args = [sys.executable, "-m", "harp", "agent", "--socket", str(path), "--user", "root"]
    args += ["--device", host.interface, "--address", "10.77.0.0/24", "--block", "64"]
    with Program(Site(tmp_path, host.command([])), args) as program:
        program.wait_for_line("harp agent: serves", 30)
        yield path


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stop_and_continue(probe: Probe) -> None:
    """Interrupts the call in which the probe waits, as a debugger or a batch system does."""
    pid = probe.process.pid
    wait_until(lambda: state_of(pid) == "S", 20, "the probe does not wait")
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state_of(pid) == "T", 20, "the probe does not stop")
    os.kill(pid, signal.SIGCONT)
    time.sleep(0.2)


def test_signals_interrupt_no_request(
    probe: Make, hosts: Hosts, agent: Path, tmp_path: Path
) -> None:
    """Each request gets its own reply, also the later ones."""
    host = hosts("veth-1500")[0]
    late = LateAgent(tmp_path / "late.sock", agent)
    one = probe(host, "env", f"HARP_AGENT={tmp_path / 'late.sock'}")
    for command in ("open packet:eth0 1 - 0 0-0 -", "reserve 0 0"):
        late.asked.clear()
        late.released.clear()
        one.start(command)
        assert late.asked.wait(20)
        stop_and_continue(one)
        late.released.set()
        one.finish()
    late.asked.clear()
    taken = {one.reserve() for _ in range(2 * BLOCK)}
    assert late.asked.is_set(), "these ports need no other block"
    assert len(taken) == 2 * BLOCK and taken <= listening(host)
    assert late.connections == 1
