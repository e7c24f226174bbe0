# SPDX-License-Identifier: Apache-2.0
"""The command tools/flood: strangers flood a rank while an all-reduce runs.

A third host floods one of two over AF_PACKET. What the all-reduce loses by that is told by
comparison with the same flood, frame by frame, to an address that nobody owns: its frames
reach the same host by the same way, and only HARP does not take notice of them. The flood
goes to the one and to the other in turn, in phases so short that whatever else the machine
does meets both alike; the job's counters give its rate in each. A second job, which verifies
every byte, runs under every attack on the victim.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Optional

import click

from harp.measure.iperf import idle_load
from harp.measure.records import describe_host
from harp.measure.stats import Summary, ratios
from harp.measure.tables import markdown
from harp.paths import build_dir
from harp.testing.jobs import Job, job
from harp.testing.lab import Host, Lab, LabError
from harp.testing.ranks import Site, TooLate, packet_site

SCHEMA = "harp.flood/1"
USUAL = ("tokens", "half-open", "replay", "byte-by-byte")
ADDRESSES = ("kernel", "own")
NOBODYS = "10.77.0.99"
SIZE = "4M"  # of the all-reduce
RATIO_LEAST = 0.9
MEMORY_MOST = 16 << 20  # bytes that a rank may grow by: what its pools had not touched before
BUSY = 0.2  # of the cores, with other work
FLOOD_LEAST_S = 1.0
VERIFY_S = 0.5
PHASE_S = 0.25
LONG_PHASE_S = 0.5  # where a connection takes many frames
NICE_FIRST = -18
SETTLE_S = 0.02  # of a phase, before its rate counts
PATIENCE_S = 20.0  # for programs to start and end, on a busy machine


class FloodError(RuntimeError):
    """A part of the scene failed: the flooder, or the job that was to run on."""


@dataclass(frozen=True)
class Attack:
    """One of the flooder's; `frames` are a connection's."""

    name: str
    what: str
    frames: int

    def connections(self, wanted: int) -> int:
        """So many, but where they take more than two frames each, as many as make as much."""
        return max(1, wanted * 2 // max(self.frames, 2))

    @property
    def phase_s(self) -> float:
        return PHASE_S if self.frames <= 2 else LONG_PHASE_S


@dataclass(frozen=True)
class Plan:
    """connections: of each attack; rate: frames a second."""

    connections: int
    rate: int

    def flood_s(self, attack: Attack) -> float:
        """Both kinds of phases together: whole pairs of them."""
        frames = 2 * attack.connections(self.connections) * attack.frames
        pair = 2 * attack.phase_s
        return ceil(max(FLOOD_LEAST_S, frames / self.rate) / pair) * pair


@dataclass(frozen=True)
class Phase:
    """What the all-reduce did in it: GB/s, and the ranks' CPU time, seconds a second."""

    rate: float
    cpu: float


@dataclass
class Row:
    """An attack on a rank with an address of one kind, and pairs of its phases."""

    attack: Attack
    address: str
    victim: list[Phase] = field(default_factory=list)
    nobody: list[Phase] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)  # the flooder's
    grown: int = 0  # bytes of resident memory
    strangers: int = 0
    wrong: Optional[int] = None  # elements; None: not verified

    @property
    def ratio(self) -> Summary:
        return ratios([one.rate for one in self.victim], [one.rate for one in self.nobody])

    @property
    def cost_us(self) -> float:
        """CPU time of the ranks that a frame costs, beyond what the job's bytes take without
        it: other work on the machine hardly touches that."""
        pairs = zip(self.victim, self.nobody)
        extra = [one.cpu - one.rate * other.cpu / other.rate for one, other in pairs]
        return median(extra) / self.frames_per_s * 1e6

    @property
    def frames_per_s(self) -> float:
        return float(self.report["frames"] / self.report["seconds"])

    def faults(self) -> list[str]:
        """What it was to keep and did not."""
        found: list[str] = []
        if self.ratio.median < RATIO_LEAST:
            found.append(f"the rate fell to {self.ratio.median:.2f}, below {RATIO_LEAST}")
        if self.grown > MEMORY_MOST:
            found.append(f"memory grew by {self.grown >> 10} KiB, above {MEMORY_MOST >> 10}")
        if self.wrong != 0:
            found.append(f"wrong elements: {'not verified' if self.wrong is None else self.wrong}")
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "ratio": asdict(self.ratio),
            "cost_us": self.cost_us,
            "frames_per_s": self.frames_per_s,
            "faults": self.faults(),
        }


# -- the flooder


def flood_program() -> Path:
    """The built flooder; FloodError says how to build it."""
    program = build_dir() / "harp" / "testing" / "flood" / "harp-flood"
    if not program.is_file():
        raise FloodError(f"{program} is not there: build it with meson compile -C {build_dir()}")
    return program


def attacks() -> dict[str, Attack]:
    """All that the flooder knows, by name."""
    said = subprocess.run(
        [str(flood_program()), "list"], capture_output=True, text=True, check=True, timeout=10
    )
    found = [Attack(**json.loads(line)) for line in said.stdout.splitlines()]
    return {attack.name: attack for attack in found}


def _expect_ready(process: "subprocess.Popen[str]") -> list[str]:
    """The words behind "ready"."""
    assert process.stdout and process.stderr
    words = process.stdout.readline().split()
    if words[:1] != ["ready"]:
        process.kill()
        raise FloodError(f"harp-flood did not start: {process.stderr.read().strip()}")
    return words[1:]


def _result(process: "subprocess.Popen[str]", within_s: float) -> dict[str, Any]:
    """The document that it ends with."""
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


def _program(host: Host, *words: object) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return host.popen([flood_program(), *words], stdout=pipe, stderr=pipe)


@dataclass
class Flooder:
    """The third host. heard: a hello to the victim, and the connection that it came by."""

    host: Host
    victim: Host
    to: str  # the victim's address
    heard: dict[str, Any]

    def begin(
        self, attack: Attack, rate: int, seconds: float, phase_s: Optional[float] = None
    ) -> tuple["subprocess.Popen[str]", float]:
        """The program, and the monotonic time of its first frame. phase_s: how long it goes to
        the victim, then to nobody, and so on; None: all of it to the victim."""
        keys = {
            "to": self.to,
            "to_mac": self.victim.mac,
            "from": self.host.own_address,
            "port": self.heard["port"],
            "own_port": self.heard["port"],
            "peer": self.heard["peer"],
            "peer_port": self.heard["peer_port"],
            "hello": self.heard["hello"],
            "rate": rate,
            "ms": round(seconds * 1000),
        }
        if phase_s:
            keys.update(nobody=NOBODYS, phase_ms=round(phase_s * 1000))
        words = [f"{key}={value}" for key, value in keys.items()]
        process = _program(self.host, attack.name, self.host.interface, *words)
        (nanoseconds,) = _expect_ready(process)
        return process, int(nanoseconds) / 1e9


# -- the scene


@dataclass(frozen=True)
class Sample:
    """time: monotonic; bytes: of the victim's payload; cpu_s: of both ranks."""

    time: float
    bytes: int
    cpu_s: float


def _cpu_s(pid: int) -> float:
    """Seconds that all of a process's threads have run."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@dataclass
class Scene:
    """A job under way between hosts 0 and 1, and the flooder on host 2."""

    job: Job
    flooder: Flooder

    def counter(self, name: str) -> int:
        dead = [rank for rank in self.job.ranks if rank.process.poll() is not None]
        if dead:
            raise FloodError(f"the job ended under the flood: {[one.lines() for one in dead]}")
        return self.job.count(0, name)

    def resident(self) -> int:
        """Bytes of the victim's memory."""
        status = Path(f"/proc/{self.job.ranks[0].process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) << 10 if found else 0

    def _now(self) -> Sample:
        cpu_s = sum(_cpu_s(rank.process.pid) for rank in self.job.ranks)
        return Sample(time.monotonic(), self.counter("tcp_payload_in"), cpu_s)

    def phase(self, begins: float, ends: float) -> Optional[Phase]:
        """What the job did in a phase, given by monotonic times; None: this process was held
        up and has missed it."""
        time.sleep(max(0.0, begins + SETTLE_S - time.monotonic()))
        first = self._now()
        time.sleep(max(0.0, ends - SETTLE_S - time.monotonic()))
        last = self._now()
        took = last.time - first.time
        if last.time > ends or took < (ends - begins) / 2:
            return None
        moved = (last.bytes - first.bytes) / 1e9
        return Phase(moved / took, (last.cpu_s - first.cpu_s) / took)


@contextmanager
def going_first() -> Iterator[None]:
    """What is started from here runs before most other work on this machine; it needs root."""
    usual, group = os.getpriority(os.PRIO_PROCESS, 0), Path("/proc/self/autogroup")
    # Where sessions, not processes, are weighed against each other: "/autogroup-7 nice 0".
    weight = group.read_text().split()[-1] if group.exists() else None
    os.setpriority(os.PRIO_PROCESS, 0, NICE_FIRST)
    try:
        if weight is not None:
            group.write_text(str(NICE_FIRST))
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)
        if weight is not None:
            group.write_text(weight)


def _sites(folder: Path, lab: Lab, own_address: bool) -> list[Site]:
    return [packet_site(folder / str(host.index), host, own_address) for host in lab.hosts[:2]]


@contextmanager
def scene(lab: Lab, address: str, *words: str) -> Iterator[Scene]:
    """words: more of harp-perf's. The hello is recorded at the victim's interface, as somebody
    in the middle would."""
    victim = lab.hosts[0]
    with tempfile.TemporaryDirectory(prefix="harp-flood-") as name:
        sites = _sites(Path(name), lab, address == "own")
        listener = _program(victim, "hear", victim.interface, sites[0].address, int(PATIENCE_S))
        _expect_ready(listener)
        whole = ["all_reduce", "-b", SIZE, "-e", SIZE, "-n", "1000000", "-w", "0", *words]
        with job(sites, victim.address, whole) as running:
            heard = _result(listener, PATIENCE_S)
            yield Scene(running, Flooder(lab.hosts[2], victim, sites[0].address, heard))


@contextmanager
def precedence() -> Iterator[None]:
    """This thread runs before others, so that a busy machine does not blur the phases' ends."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def measure(where: Scene, row: Row, plan: Plan) -> None:
    """Fills in what the row saw."""
    phase_s, seconds = row.attack.phase_s, plan.flood_s(row.attack)
    resident, strangers = where.resident(), where.counter("strangers")
    process, began = where.flooder.begin(row.attack, plan.rate, seconds, phase_s)
    with precedence():
        for pair in range(round(seconds / phase_s / 2)):
            begins = began + 2 * pair * phase_s
            victim = where.phase(begins, begins + phase_s)
            nobody = where.phase(begins + phase_s, begins + 2 * phase_s)
            row.grown = max(row.grown, where.resident() - resident)
            if victim and nobody and nobody.rate > 0:
                row.victim.append(victim)
                row.nobody.append(nobody)
    row.report = _result(process, PATIENCE_S)
    row.strangers = where.counter("strangers") - strangers
    if not row.victim:
        raise FloodError(f"{row.attack.name}: this machine is too busy to measure a single phase")


def verify(where: Scene, attack: Attack, plan: Plan) -> None:
    """A while of the attack on the victim."""
    process, _ = where.flooder.begin(attack, plan.rate, VERIFY_S)
    _result(process, VERIFY_S + PATIENCE_S)


def wrong_elements(running: Job) -> int:
    """Ends a verified job by its second rank's death: what the first one saw until then."""
    running.ranks[1].end()
    _, line = running.ranks[0].wait_for_line("had come before that", PATIENCE_S)
    found = re.search(r"(\d+) messages had come before that, with (\d+) wrong", line)
    if not found or int(found[1]) == 0:
        raise FloodError(f"the verified job has verified nothing: {line}")
    return int(found[2])


def run(
    lab: Lab,
    address: str,
    which: Sequence[Attack],
    plan: Plan,
    more: Sequence[str],
    say: Callable[[str], None],
) -> list[Row]:
    """All rows with the victim's address of this kind. more: options for the verified job."""
    rows = [Row(attack, address) for attack in which]
    with scene(lab, address) as where:
        for row in rows:
            measure(where, row, plan)
            say(f"{row.attack.name}, {address} address: {row.ratio.median:.2f} of the rate")
    with scene(lab, address, "--verified", *more) as where:
        for row in rows:
            verify(where, row.attack, plan)
        wrong = wrong_elements(where.job)
        say(f"{address} address: {wrong} elements wrong under all of these attacks")
    for row in rows:
        row.wrong = wrong
    return rows


# -- what people see

HEADER = ("attack", "address", "connections", "frames/s", "answered", "GB/s", "to nobody",
          "ratio", "pairs", "CPU µs a frame",
          "strangers", "grown KiB", "wrong")  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    def cells(row: Row) -> list[str]:
        return [
            f"{row.attack.name}: {row.attack.what}",
            row.address,
            str(row.report["connections"]),
            f"{row.frames_per_s:.0f}",
            str(row.report["answered"]),
            f"{median(one.rate for one in row.victim):.2f}",
            f"{median(one.rate for one in row.nobody):.2f}",
            f"{row.ratio.median:.2f}",
            str(row.ratio.count),
            f"{row.cost_us:.1f}",
            str(row.strangers),
            str(row.grown >> 10),
            "–" if row.wrong is None else str(row.wrong),
        ]

    return markdown(HEADER, [cells(row) for row in rows], range(2, len(HEADER)))


def _list_attacks(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        for attack in attacks().values():
            click.echo(f"{attack.name}: {attack.what}")
        context.exit()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--connections",
    default=100_000,
    show_default=True,
    type=click.IntRange(1),
    help="Of each attack on each kind of address; less where one takes many frames.",
)
@click.option(
    "--rate",
    default=10_000,
    show_default=True,
    type=click.IntRange(100, 1_000_000),
    help="Frames a second. The flooder shares this machine with the ranks.",
)
@click.option(
    "--attack",
    "names",
    multiple=True,
    metavar="NAME",
    help=f"Only this one; may be repeated.  [default: {', '.join(USUAL)}]",
)
@click.option("--all", "every", is_flag=True, help="Every attack that the flooder knows.")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_attacks,
    help="Name the attacks, and do nothing.",
)
@click.option(
    "--address",
    "addresses",
    multiple=True,
    type=click.Choice(ADDRESSES),
    help="The victim's: the kernel's, or its own.  [default: both]",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all rows to this file.",
)
@click.option(
    "--first", is_flag=True, help="The ranks run before other work on this machine, if it has any."
)
@click.option(
    "--inject-wrong", is_flag=True, help="Flip one received byte: shows that it would be noticed."
)
def main(connections: int, rate: int, names: tuple[str, ...], every: bool,
         addresses: tuple[str, ...], json_path: Optional[Path],
         first: bool, inject_wrong: bool) -> None:  # fmt: skip
    """Flood a rank with strangers while an all-reduce runs, and see what it loses.

    Exit: 0 if it keeps 0.9 of its rate, its memory is bounded and every byte is right; 1 if
    not, or if something failed; 2 on wrong usage.
    """
    start = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"[{time.monotonic() - start:4.0f} s] {text}", err=True)

    try:
        known = attacks()
        unknown = [name for name in names if name not in known]
        if unknown:
            raise click.UsageError(f"--attack {unknown[0]}: there are {', '.join(known)}")
        which = [known[name] for name in (known if every else names or USUAL)]
        plan = Plan(connections, rate)
        more = ["--inject-wrong"] if inject_wrong else []
        rows: list[Row] = []
        load = idle_load()
        with going_first() if first else nullcontext(), Lab(hosts=3) as lab:
            for address in addresses or ADDRESSES:
                rows += run(lab, address, which, plan, more, say)
    except (FloodError, LabError, TooLate, OSError) as error:
        click.echo(f"flood: {error}", err=True)
        sys.exit(1)
    click.echo(f"\n{table(rows)}\n")
    click.echo(
        "Medians of phases of the same flood, to the rank and to nobody in turn. Connections, "
        "answers and strangers are those of the phases on the rank.\n"
    )
    if load > BUSY and not first:
        click.echo(
            f"The machine was busy with other work ({load:.0%} of its cores): the ranks had little "
            "of it, and a flood costs them more of that little. --first lets them run before it.\n"
        )
    faults = [
        f"{row.attack.name}, {row.address}: {fault}" for row in rows for fault in row.faults()
    ]
    for fault in faults:
        click.echo(f"FAIL {fault}", err=True)
    if json_path:
        document = {
            "schema": SCHEMA,
            "host": describe_host(),
            "own_load": load,
            "rows": [r.as_json() for r in rows],
        }
        json_path.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main(prog_name="tools/flood")
