# SPDX-License-Identifier: Apache-2.0
"""A running job between two hosts, and a flooder that attacks it."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from harp.paths import build_dir
from tools.hosts.jobs import Job, job
from tools.hosts.lab import Host, Lab
from tools.hosts.ranks import packet_site, remove_wire, wire_path, wire_site
from tools.measure.flood_rows import Attack, Phase

TRANSPORTS = ("packet", "packet-own", "xdp", "wire")
SIZE = "4M"  # of the all-reduce
SETTLE_S = 0.02  # not measured at each end of a phase
TIMEOUT_MS = 10_000  # ends the job after a rank's death: HARP's own address then sends no reset
END_S = 20.0  # seconds for programs to start and end, on a busy machine


class FloodError(RuntimeError):
    """The flooder failed, or the job that must continue ended."""


# -- the flooder


def flood_program() -> Path:
    """The path of the built flooder. Raises FloodError with the way to build it."""
    program = build_dir() / "tools" / "attacker" / "harp-flood"
    if not program.is_file():
        raise FloodError(f"{program} is missing: build it with meson compile -C {build_dir()}")
    return program


def attacks() -> dict[str, Attack]:
    """All attacks of the flooder, by name."""
    said = subprocess.run(
        [str(flood_program()), "list"], capture_output=True, text=True, check=True, timeout=10
    )
    found = [Attack(**json.loads(line)) for line in said.stdout.splitlines()]
    return {attack.name: attack for attack in found}


def _expect_ready(process: "subprocess.Popen[str]") -> list[str]:
    """The words after "ready". Raises FloodError if the flooder prints something else."""
    assert process.stdout and process.stderr
    answer = process.stdout.readline().split()
    if answer[:1] != ["ready"]:
        process.kill()
        raise FloodError(f"harp-flood did not start: {process.stderr.read().strip()}")
    return answer[1:]


def _result(process: "subprocess.Popen[str]", within_s: float) -> dict[str, Any]:
    """The JSON document that the flooder prints at its end."""
    try:
        said, errors = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise FloodError(f"harp-flood did not end within {within_s} s") from None
    if process.returncode:
        raise FloodError(f"harp-flood ended with {process.returncode}: {errors.strip()}")
    document: dict[str, Any] = json.loads(said)
    return document


def _program(host: Host, *args: object) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return host.popen([flood_program(), *args], stdout=pipe, stderr=pipe)


@dataclass
class Flooder(ABC):
    """An attacker. to: the victim's address. heard: a recorded hello to the victim, and its
    connection."""

    to: str
    heard: dict[str, Any]

    def _near(self, number: int) -> str:
        """An address in the victim's network."""
        return f"{self.to.rpartition('.')[0]}.{number}"

    def args(self, rate: int, seconds: float, phase_s: Optional[float]) -> list[str]:
        """The arguments of harp-flood after the attack's name."""
        keys = {
            "to": self.to,
            "to_mac": self.heard["mac"],
            "from": self._near(103),
            "port": self.heard["port"],
            "own_port": self.heard["port"],
            "peer": self.heard["peer"],
            "peer_port": self.heard["peer_port"],
            "hello": self.heard["hello"],
            "rate": rate,
            "ms": round(seconds * 1000),
        }
        if phase_s:
            keys.update(nobody=self._near(99), phase_ms=round(phase_s * 1000))
        return [f"{key}={value}" for key, value in keys.items()]

    @abstractmethod
    def begin(
        self, attack: Attack, rate: int, seconds: float, phase_s: Optional[float] = None
    ) -> float:
        """Starts the flood. Returns the monotonic time of the first frame. phase_s: the flood goes
        to the victim and to an unused address in turn, this long to each; None: only to the
        victim."""

    @abstractmethod
    def finish(self, within_s: float) -> dict[str, Any]:
        """Waits for the end. Returns the flooder's report. Raises FloodError after within_s."""


@dataclass
class HostFlooder(Flooder):
    """A flooder on a third host, with a new process for each attack."""

    host: Host
    _process: "Optional[subprocess.Popen[str]]" = None

    def begin(
        self, attack: Attack, rate: int, seconds: float, phase_s: Optional[float] = None
    ) -> float:
        args = self.args(rate, seconds, phase_s)
        self._process = _program(self.host, attack.name, self.host.interface, *args)
        (nanoseconds,) = _expect_ready(self._process)
        return int(nanoseconds) / 1e9

    def finish(self, within_s: float) -> dict[str, Any]:
        assert self._process
        return _result(self._process, within_s)


@dataclass
class WireFlooder(Flooder):
    """A flooder between two wires. It also forwards the job's frames."""

    process: "subprocess.Popen[str]"

    def begin(
        self, attack: Attack, rate: int, seconds: float, phase_s: Optional[float] = None
    ) -> float:
        assert self.process.stdin
        self.process.stdin.write(f"{attack.name} {' '.join(self.args(rate, seconds, phase_s))}\n")
        self.process.stdin.flush()
        (nanoseconds,) = _expect_ready(self.process)
        return int(nanoseconds) / 1e9

    def finish(self, within_s: float) -> dict[str, Any]:
        return _line(self.process, within_s)


def _line(process: "subprocess.Popen[str]", within_s: float) -> dict[str, Any]:
    """The next JSON document that the flooder prints."""
    assert process.stdout
    # select() would miss a line that Python has buffered with an earlier one.
    reader = ThreadPoolExecutor(1)
    try:
        line = reader.submit(process.stdout.readline).result(within_s)
    except TimeoutError:
        raise FloodError(f"harp-flood printed nothing within {within_s} s") from None
    finally:
        reader.shutdown(wait=False)
    document: dict[str, Any] = json.loads(line or "{}")
    if not document:
        raise FloodError("harp-flood has ended")
    return document


# -- the scene


@dataclass(frozen=True)
class Sample:
    """time: monotonic, s. bytes: the victim's received payload. cpu_s: CPU time of both ranks."""

    time: float
    bytes: int
    cpu_s: float


def _cpu_s(pid: int) -> float:
    """The CPU time of all threads of a process, in seconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@dataclass
class Scene:
    """A running job between hosts 0 and 1, and a flooder on host 2 or between two wires."""

    job: Job
    flooder: Flooder

    def counter(self, name: str) -> int:
        dead = [rank for rank in self.job.ranks if rank.process.poll() is not None]
        if dead:
            raise FloodError(f"the job ended under the flood: {[one.lines() for one in dead]}")
        return self.job.count(0, name)

    def resident(self) -> int:
        """The victim's resident memory, in bytes."""
        status = Path(f"/proc/{self.job.ranks[0].process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) << 10 if found else 0

    def _now(self) -> Sample:
        cpu_s = sum(_cpu_s(rank.process.pid) for rank in self.job.ranks)
        return Sample(time.monotonic(), self.counter("tcp_payload_in"), cpu_s)

    def phase(self, begins: float, ends: float) -> Optional[Phase]:
        """Measures the job in a phase, given by monotonic times. None: this process ran too late
        to measure it."""
        time.sleep(max(0.0, begins + SETTLE_S - time.monotonic()))
        first = self._now()
        time.sleep(max(0.0, ends - SETTLE_S - time.monotonic()))
        last = self._now()
        took = last.time - first.time
        if last.time > ends or took < (ends - begins) / 2:
            return None
        moved = (last.bytes - first.bytes) / 1e9
        return Phase(moved / took, (last.cpu_s - first.cpu_s) / took)


ARGS = ("all_reduce", "-b", SIZE, "-e", SIZE, "-n", "1000000", "-w", "0")


@contextmanager
def scene(lab: Lab, transport: str, *args: str) -> Iterator[Scene]:
    """Runs a job and a flooder. args: more arguments of harp-perf. The hello is recorded on the
    path to the victim: no socket on its host sees the frames of xdp devices."""
    with tempfile.TemporaryDirectory(prefix="harp-flood-") as name:
        places = [Path(name) / str(number) for number in range(2)]
        whole = [*ARGS, *args]
        if transport == "wire":
            with _between_wires(places, whole) as made:
                yield made
            return
        victim = lab.hosts[0]
        hosts = zip(places, lab.hosts)
        port, _, own = transport.partition("-")
        sites = [
            packet_site(place, host, bool(own), port=port, timeout_ms=TIMEOUT_MS)
            for place, host in hosts
        ]
        switch = Host(lab.middlebox, 1, lab.wire, "port1")  # the port of the victim's peer
        listener = _program(switch, "listen", switch.interface, sites[0].address, int(END_S))
        _expect_ready(listener)
        with job(sites, victim.address, whole) as running:
            heard = _result(listener, END_S)
            yield Scene(running, HostFlooder(sites[0].address, heard, lab.hosts[2]))


@contextmanager
def _between_wires(places: Sequence[Path], args: Sequence[str]) -> Iterator[Scene]:
    wires = [wire_path() for _ in places]
    sites = [
        wire_site(*one, number, timeout_ms=TIMEOUT_MS)
        for number, one in enumerate(zip(places, wires), 1)
    ]
    whole = [str(flood_program()), "forward", *map(str, wires), sites[0].address]
    pipe = subprocess.PIPE
    flooder = subprocess.Popen(whole, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        _expect_ready(flooder)
        with job(sites, "127.0.0.1", args) as running:
            heard = _line(flooder, END_S)
            yield Scene(running, WireFlooder(sites[0].address, heard, flooder))
    finally:
        flooder.kill()
        flooder.communicate()
        for wire in wires:
            remove_wire(wire)
