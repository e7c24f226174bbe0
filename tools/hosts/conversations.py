# SPDX-License-Identifier: Apache-2.0
"""TCP transfers between the hosts of a lab: `harp nc` with the kernel, two of `harp nc`, and two
kernels for comparison. `Conversation.check` verifies every byte by hash."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harp import paths
from tools.hosts.lab import Host

PEER = Path(__file__).with_name("tcp_peer.py")
SANITIZED = "SANITIZER_RUNTIME" in os.environ
END_S = 60


@dataclass(frozen=True)
class Load:
    """The data that one side sends. It depends on `seed`; `rate` is in 10^6 bytes/s, 0: no limit.

    held: the side sends only after let_go.
    """

    bytes: int = 0
    seed: int = 1
    rate: float = 0.0
    held: bool = False

    def args(self) -> list[str]:
        options = [f"--send={self.bytes}", f"--seed={self.seed}", f"--rate={self.rate}"]
        return options + (["--held"] if self.held else [])


@dataclass(frozen=True)
class Told:
    """A side's report. `seconds` is from the first byte received to the last.

    timeline: pairs of time (CLOCK_MONOTONIC, s) and the number of bytes received by then.
    """

    sent: int
    sent_sha256: str
    received: int
    received_sha256: str
    seconds: float
    timeline: Sequence[tuple[float, int]] = ()

    @property
    def goodput(self) -> float:
        """The rate of the received bytes, in 10^6 bytes per second."""
        return self.received / self.seconds / 1e6


@dataclass(frozen=True)
class Conversation:
    """Both sides of a connection. `report` is the document of `harp nc --json` of the first side
    that uses HARP; it is empty for two kernels."""

    first: Told
    second: Told
    report: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raises AssertionError if a byte is missing, extra or wrong, in either direction."""
        for sender, receiver in ((self.first, self.second), (self.second, self.first)):
            sent, received = sender.sent, receiver.received
            assert received == sent, f"{sent} bytes were sent, but {received} received"
            right = receiver.received_sha256 == sender.sent_sha256
            assert right, f"some of the {sent} bytes received are wrong"


def _wait_until_ready(process: "subprocess.Popen[str]") -> None:
    assert process.stderr
    first = process.stderr.readline()
    assert first == "ready\n", first + process.stderr.read()


class Peer:
    """The kernel's side. prefix: precedes the command line."""

    def __init__(
        self,
        host: Host,
        role: str,
        address: str,
        port: int,
        load: Load,
        prefix: Sequence[str] = (),
    ) -> None:
        command = [*prefix, sys.executable, PEER, role, address, port, *load.args()]
        self.process = host.popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.source = self.process
        if role == "listen":
            _wait_until_ready(self.process)

    def wait_until_held(self) -> None:
        """Waits until it is connected and could send."""
        _wait_until_ready(self.process)

    def end(self, timeout_s: float = END_S) -> Told:
        """Waits for the end. Raises AssertionError with its output if it failed."""
        said, complaint = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, complaint
        return Told(**json.loads(said))


class Netcat:
    """HARP's side: a source, `harp nc` and a sink, joined by pipes.

    own: use HARP's own address instead of the kernel's. fault: the faults of a fault port.
    prefix: precedes the command lines. stall: seconds for which the sink stops reading after the
    first bytes.
    """

    def __init__(
        self,
        host: Host,
        arguments: list[str],
        load: Load,
        folder: Path,
        own: bool = False,
        fault: str = "",
        prefix: Sequence[str] = (),
        stall: float = 0.0,
    ) -> None:
        self.json = folder / f"nc-{host.index}-{arguments[-1]}.json"
        self.json.unlink(missing_ok=True)
        name = f"packet:{host.interface}"
        device = ["--device", f"fault:{fault}|{name}" if fault else name]
        address = ["--address", f"{host.own_address}/{host.prefix}"] if own else []
        source_end, sink_end = os.pipe(), os.pipe()
        # The sink starts first: a late reader would let the receive window close.
        self.sink = host.popen(
            [*prefix, sys.executable, PEER, "sink", f"--stall={stall}"],
            stdin=sink_end[0], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        _wait_until_ready(self.sink)
        self.process = host.popen(
            [*prefix, paths.nc_program(), *device, *address, "--json", self.json, "-v", "-w", "20",
             *arguments],
            env={"HARP_RUN_DIR": str(folder)},
            stdin=source_end[0], stdout=sink_end[1], stderr=subprocess.PIPE,
        )  # fmt: skip
        self.source = host.popen(
            [*prefix, sys.executable, PEER, "source", *load.args()],
            stdin=subprocess.PIPE, stdout=source_end[1], stderr=subprocess.PIPE,
        )  # fmt: skip
        for end in (*source_end, *sink_end):
            os.close(end)  # else the children would never see the end of file
        if "-l" in arguments:
            self._wait_until_said("listening on")

    def _wait_until_said(self, what: str) -> None:
        assert self.process.stderr
        said = ""
        for line in self.process.stderr:
            said += line
            if what in line:
                return
        raise AssertionError(said)

    def wait_until_held(self) -> None:
        """Waits until it is connected and the source could send."""
        self._wait_until_said("connected to")
        _wait_until_ready(self.source)

    @property
    def memory(self) -> int:
        """The resident memory of `harp nc`, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]

    def end(self, timeout_s: float = END_S) -> tuple[Told, dict[str, Any]]:
        """Waits for the end. Raises AssertionError with its output if it failed."""
        _, said = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, said
        received, _ = self.sink.communicate(timeout=10)
        _, sent = self.source.communicate(timeout=10)
        told = Told(**json.loads(sent), **json.loads(received))
        return told, json.loads(self.json.read_text())


class OneWay:
    """A running transfer from the first host, which connects, to the second.

    harp: whether each of them uses HARP's TCP instead of the kernel's. Both use the kernel's
    address.
    """

    def __init__(
        self, hosts: Sequence[Host], harp: tuple[bool, bool], load: Load, folder: Path, port: int
    ) -> None:
        sender, receiver = hosts
        self._receives: Peer | Netcat = (
            Netcat(receiver, ["-l", str(port)], Load(), folder)
            if harp[1]
            else Peer(receiver, "listen", receiver.address, port, Load())
        )
        self._sends: Peer | Netcat = (
            Netcat(sender, [receiver.address, str(port)], load, folder)
            if harp[0]
            else Peer(sender, "connect", receiver.address, port, load)
        )

    def wait_until_held(self) -> None:
        """For a held load: waits until it is connected and could send."""
        self._sends.wait_until_held()

    def let_go(self) -> None:
        """Lets the sender of a held load send."""
        pipe = self._sends.source.stdin
        assert pipe
        pipe.write("\n")
        pipe.flush()

    def end(self, timeout_s: float = END_S) -> Conversation:
        """Waits for the end. Raises AssertionError with a side's output if that side failed."""
        told: list[Told] = []
        report: dict[str, Any] = {}
        for side in (self._sends, self._receives):
            if isinstance(side, Netcat):
                one, own = side.end(timeout_s)
                report = report or own
            else:
                one = side.end(timeout_s)
            told.append(one)
        return Conversation(told[0], told[1], report)


def with_harp(
    harp: Host,
    kernel: Host,
    folder: Path,
    connects: bool,
    own: bool,
    port: int,
    to_kernel: Load = Load(),
    to_harp: Load = Load(),
    fault: str = "",
    prefix: Sequence[str] = (),
) -> Conversation:
    """A transfer between HARP (`first`) and a kernel (`second`). `connects`: HARP connects."""
    address = harp.own_address if own else harp.address
    if connects:
        second = Peer(kernel, "listen", kernel.address, port, to_harp, prefix)
        arguments = [kernel.address, str(port)]
        first = Netcat(harp, arguments, to_kernel, folder, own, fault, prefix)
    else:
        first = Netcat(harp, ["-l", str(port)], to_kernel, folder, own, fault, prefix)
        second = Peer(kernel, "connect", address, port, to_harp, prefix)
    told, report = first.end()
    return Conversation(told, second.end(), report)
