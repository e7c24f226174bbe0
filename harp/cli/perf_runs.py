# SPDX-License-Identifier: Apache-2.0
"""Runs of `harp perf` that this process watches: the C program of one rank, or a rank on each host
over ssh.

A rank that is started over ssh has the option `--until-eof`. Its standard input ends with the ssh
that started it, and so does the rank.
"""

from __future__ import annotations

import ipaddress
import os
import select
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Optional

import click

from harp.check.launcher import DEFAULT_PORT
from harp.cli.stop import Stop

_ERRORS_S = 2.0  # for the errors of the other ranks, after one has failed
_GRACE_S = 5.0  # for ranks that are to end
_PAUSE_S = 0.05
_SSH_FAILED = 255  # ssh's own status; ranks end with 0 to 2


def _input_has_ended() -> bool:
    """Reads standard input, without waiting, and forgets what it reads."""
    try:
        return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 4096)
    except OSError:
        return True


def run_program(args: Sequence[str], until_eof: bool) -> int:
    """Runs one rank's program to its end, and returns its exit status, 1 if a signal ended it.
    Ctrl-C, SIGTERM, SIGHUP and, with `until_eof`, the end of standard input end the program. A
    second Ctrl-C kills it and raises KeyboardInterrupt."""
    stop = Stop()
    with stop.listening():
        # The program has a session of its own, so Ctrl-C in a terminal reaches it once.
        child = subprocess.Popen(args, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            status = _await_program(child, stop, until_eof)
        finally:
            child.kill()  # does nothing if the program has ended
            child.wait()
    return 1 if stop.requested or status < 0 else status


def _await_program(child: "subprocess.Popen[bytes]", stop: Stop, until_eof: bool) -> int:
    requested_at = 0.0
    while True:
        try:
            return child.wait(_PAUSE_S)
        except subprocess.TimeoutExpired:
            pass
        if not requested_at and (stop.requested or (until_eof and _input_has_ended())):
            child.terminate()
            requested_at = time.monotonic()
        elif requested_at and time.monotonic() - requested_at > _GRACE_S:
            child.kill()


def rendezvous_at(host: str) -> str:
    """The rendezvous at a host's address. Raises UsageError if the address is unknown here."""
    name = host.rpartition("@")[2]
    remedy = "give --rendezvous HOST:PORT, with an address of the first host for the others"
    try:
        found = socket.getaddrinfo(name, DEFAULT_PORT, type=socket.SOCK_STREAM)
    except OSError as unknown:
        raise click.UsageError(f"--hosts {name}: {unknown.strerror}; {remedy}") from unknown
    address = str(found[0][4][0])
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise click.UsageError(f"--hosts {name} is {address} on this host; {remedy}")
    return f"[{address}]:{DEFAULT_PORT}" if ":" in address else f"{address}:{DEFAULT_PORT}"


@dataclass
class _Rank:
    number: int
    host: str
    process: "subprocess.Popen[str]"
    readers: list[threading.Thread] = field(default_factory=list)
    reported: bool = False

    def says(self, stream: IO[str]) -> None:
        """Starts to print a stream, with the host's name before each line of other ranks. The lines
        of rank 0 are the table, and its errors name rank 0."""
        prefix = f"{self.host}: " if self.number else ""

        def read() -> None:
            for line in stream:
                click.echo(prefix + line.rstrip("\n"), err=True)

        self.readers.append(threading.Thread(target=read, daemon=True))
        self.readers[-1].start()

    def why(self, remote: str) -> str:
        status = self.process.returncode
        about = f"{self.host}: rank {self.number} "
        if status == _SSH_FAILED:
            return about + "was not started: see ssh's message, and log in there once by hand"
        if status in (126, 127):
            return about + f"was not started: install HARP there, or correct --remote-harp {remote}"
        if status < 0:
            return about + f"ended: signal {-status} ended its ssh"
        return about + f"ended with status {status}"

    def kill(self) -> None:
        """Kills the process group of an ssh that has not ended."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


class HostRanks:
    """Rank i on the i-th host. `ssh` and `remote` are command lines of a shell."""

    def __init__(self, hosts: Sequence[str], ssh: str, remote: str) -> None:
        self._hosts = hosts
        self._ssh = ssh
        self._remote = remote
        self._ranks: list[_Rank] = []

    def _start(self, number: int, args: Sequence[str], output: Optional[IO[str]]) -> None:
        host = self._hosts[number]
        command = f"{self._remote} perf {shlex.join([*args, '--until-eof'])}"
        first = number == 0
        try:
            process = subprocess.Popen(
                [*shlex.split(self._ssh), host, command],
                stdin=subprocess.PIPE,
                stdout=output if first else subprocess.PIPE,
                stderr=subprocess.PIPE if first else subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        except OSError as failure:
            raise click.ClickException(f"--ssh {self._ssh}: {failure}") from failure
        rank = _Rank(number, host, process)
        self._ranks.append(rank)
        stream = process.stderr if first else process.stdout
        assert stream is not None
        rank.says(stream)

    def _await(self, stop: Stop) -> None:
        """Waits until all ranks have ended, or have had time to end after a failure."""
        limit = float("inf")
        while any(rank.process.poll() is None for rank in self._ranks):
            if stop.requested:
                click.echo("harp perf: interrupted; all ranks are ended", err=True)
                return
            for rank in self._ranks:
                if rank.process.poll() and not rank.reported:
                    rank.reported = True
                    click.echo(f"harp perf: {rank.why(self._remote)}", err=True)
                    limit = min(limit, time.monotonic() + _ERRORS_S)
            if time.monotonic() > limit:
                click.echo("harp perf: the other ranks are ended", err=True)
                return
            time.sleep(_PAUSE_S)

    def _end(self) -> None:
        """Lets the ranks end by the end of their input, and kills those that do not in time, or at
        a second Ctrl-C."""
        limit = time.monotonic() + 2 * _GRACE_S
        try:
            for rank in self._ranks:
                assert rank.process.stdin is not None
                rank.process.stdin.close()
            for rank in self._ranks:
                with suppress(subprocess.TimeoutExpired):
                    rank.process.wait(max(0.0, limit - time.monotonic()))
        finally:
            for rank in self._ranks:
                rank.kill()
        for rank in self._ranks:
            rank.process.wait()
            for reader in rank.readers:
                reader.join(1.0)

    def run(self, args: Callable[[int], Sequence[str]], output: Optional[IO[str]] = None) -> int:
        """Runs all ranks to their end, with the arguments of `args`, and returns the exit status.
        `output` takes rank 0's standard output [this process's]. Nothing of the run is left, also
        after Ctrl-C, SIGTERM, SIGHUP, or the failure of a rank. Raises ClickException, and
        KeyboardInterrupt at a second Ctrl-C."""
        stop = Stop()
        self._ranks = []
        with stop.listening():
            try:
                for number in range(len(self._hosts)):
                    self._start(number, args(number), output)
                self._await(stop)
            finally:
                self._end()
        statuses = [rank.process.returncode for rank in self._ranks]
        for rank, status in zip(self._ranks, statuses):
            if status and not rank.reported and not stop.requested:
                click.echo(f"harp perf: {rank.why(self._remote)}", err=True)
        if stop.requested or not set(statuses) <= {0, 2}:
            return 1
        return max(statuses)
