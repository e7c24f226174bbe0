# SPDX-License-Identifier: Apache-2.0
"""A port that waits for the agent of its node while signals arrive."""

from __future__ import annotations

import array
import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from packet_ports import Hosts, Make, listening
from port_probe import PortError, Probe

from tools.hosts.lab import Host
from tools.hosts.ranks import Program, Site, wait_until

GRANT = 64  # local ports of a process
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
                with suppress(BrokenPipeError):  # the client no longer waits
                    client.sendmsg([data], control)
                for _, _, rights in control:
                    for fd in array.array("i", rights):
                        os.close(fd)


@contextmanager
def agent_on(host: Host, path: Path) -> Iterator[Program]:
    """An agent on a host that serves the socket `path`."""
    args = [sys.executable, "-m", "harp", "agent", "--socket", str(path), "--user", "root"]
    args += ["--device", host.interface, "--address", "10.77.0.0/24", "--block", str(GRANT)]
    with Program(Site(path.parent, host.command([])), args) as program:
        program.wait_for_line("harp agent: serves", 30)
        yield program


@pytest.fixture
def agent(hosts: Hosts, tmp_path: Path) -> Iterator[Path]:
    """The socket of an agent on the first host."""
    path = tmp_path / "agent.sock"
    with agent_on(hosts("veth-1500")[0], path):
        yield path


def reserve(one: Probe) -> int:
    """A local port, also on a busy machine: the agent has a second for each try, and tries in the
    second after a failed one fail at once."""
    for _ in range(100):
        with suppress(PortError):
            return one.reserve()
        time.sleep(0.2)
    raise AssertionError("no port")


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
    too_late = 0
    for command in ("open packet:eth0 1 - 0 0-0 -", "reserve 0 0"):
        late.asked.clear()
        late.released.clear()
        one.start(command)
        assert late.asked.wait(20)
        stop_and_continue(one)
        late.released.set()
        try:
            one.finish()
        except PortError as failed:  # a busy machine: this test took a second
            assert failed.number == errno.ETIMEDOUT and command.startswith("reserve")
            too_late = 1
    late.asked.clear()
    taken = {reserve(one) for _ in range(2 * BLOCK)}
    assert late.asked.is_set(), "these ports need no other block"
    assert len(taken) == 2 * BLOCK and taken <= listening(host)
    assert too_late or late.connections == 1


def test_frozen_agent_stops_no_poller(probe: Make, hosts: Hosts, tmp_path: Path) -> None:
    """A request for more local ports ends soon, so that the caller can try again elsewhere."""
    host = hosts("veth-1500")[0]
    with agent_on(host, tmp_path / "agent.sock") as program:
        one = probe(host, "env", f"HARP_AGENT={tmp_path / 'agent.sock'}")
        one.open("packet:eth0")
        taken = {reserve(one) for _ in range(BLOCK)}
        program.signal(signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(PortError) as failed:
            for _ in range(BLOCK):  # a block at the end of the range is short, so some may be left
                taken.add(one.reserve())
        assert failed.value.number == errno.ETIMEDOUT
        assert time.monotonic() - begun < 6  # 15 s for an open
        begun = time.monotonic()
        with pytest.raises(PortError):
            one.reserve()
        assert time.monotonic() - begun < 0.5  # so that a poller stands still for half of the time
        program.signal(signal.SIGCONT)
        taken |= {reserve(one) for _ in range(BLOCK)}
        assert len(taken) >= 2 * BLOCK and taken <= listening(host)
        program.signal(signal.SIGTERM)
        program.wait(20)
        with pytest.raises(PortError) as failed:
            for _ in range(2 * BLOCK):
                one.reserve()
        holds_all = len(listening(host)) == GRANT  # then it does not ask for more
        assert failed.value.number == (errno.EADDRINUSE if holds_all else errno.ETIMEDOUT)
