# SPDX-License-Identifier: Apache-2.0
"""Trials: a fault is injected into an all-reduce while its bytes flow, and the end is checked.

A trial starts two ranks of harp-perf that verify every iteration. It waits until bytes flow and for
a random time more, and then injects the fault. Depending on the fault, the job must succeed, or its
ranks must fail in time. Another end is reported as a hang, a crash, wrong bytes or "other".
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from tools.hosts.jobs import Job, Joint, all_reduce, job
from tools.hosts.lab import Lab, LabError
from tools.hosts.ports import random_port
from tools.hosts.rails import Rails
from tools.hosts.ranks import (
    Perf,
    TooLate,
    ethdev_site,
    packet_site,
    remove_wire,
    wire_path,
    wire_site,
    wrong_elements,
)

TRANSPORTS = ("packet", "packet-own", "xdp", "wire", "ethdev")
BETWEEN_PROCESSES = ("wire", "ethdev")  # between processes of this machine, without root or hosts
SOCKET = "vhost"  # the socket in a trial's folder, over ethdev
FLOWS = 4
GBIT = 0.5  # offered rate; an iteration of 4 MiB takes 67 ms
ITERATIONS_A_SECOND = 15
MESSAGES = 8  # messages that each rank has received before the fault
DELAY_S = 0.3  # the longest random delay before the fault
SLACK_S = 1.0  # allowed beyond timeout_ms: timer ticks, and a busy machine
HANG_S = 30.0  # beyond timeout_ms: a job that still runs then hangs
END_S = 30.0  # for a failed or finished rank to exit
SHORT_MOST = 0.75  # of timeout_ms: the longest fault that a job must survive
TRIES = 5  # of a trial that a busy machine disturbs

WENT_ON, ERROR = "went on", "error"
HANG, CRASH, WRONG, OTHER = "hang", "crash", "wrong", "other"

DEVICE_IS_GONE = "HARP: the device "
SANITIZER = re.compile(r"(ERROR|WARNING): \w+Sanitizer|runtime error:")


class Misbehaved(Exception):
    """A trial did not end as expected; kind: HANG, CRASH, WRONG or OTHER."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Missed(Misbehaved):
    """The trial did not produce its fault, for example on a busy machine. It says nothing about
    the job and must be repeated."""

    def __init__(self, text: str) -> None:
        super().__init__(OTHER, text)


@dataclass
class Outcome:
    """The outcome of a trial. error_s: seconds from the fault to the last error that it must cause.
    missed: the number of repetitions."""

    fault: str
    number: int
    kind: str
    expected: bool = True
    text: str = ""
    error_s: Optional[float] = None
    missed: int = 0
    seconds: float = 0.0
    logs: Optional[str] = None


@dataclass
class Trial:
    """A job with a fault. `errors`: seconds from the fault to each error."""

    draw: random.Random
    timeout_s: float
    lab: Optional[Lab]
    joint: Joint
    shared: bool  # several processes may serve one address
    job: Job
    programs: list[Perf]  # all that were started
    killed: list[Perf] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    rails: Optional[Rails] = None

    @property
    def ranks(self) -> list[Perf]:
        return self.job.ranks

    def one(self) -> int:
        """A random rank."""
        return self.draw.randrange(2)

    def short(self) -> float:
        """A random duration in seconds that the job must survive."""
        return self.draw.uniform(0.1, 0.6) * self.timeout_s

    def was_short(self, since: float) -> None:
        """Checks the length of a fault that has ended and that the job must survive. Raises Missed
        if it took too long."""
        took = time.monotonic() - since
        if took > SHORT_MOST * self.timeout_s:
            raise Missed(f"the fault lasted {took:.2f} s: this machine is too busy")

    def kill(self, number: int) -> float:
        """Kills a rank. Returns the time."""
        self.killed.append(self.ranks[number])
        return self.ranks[number].signal(signal.SIGKILL)

    @contextmanager
    def another_job(self) -> Iterator[Callable[[int], Perf]]:
        """Yields a function that starts a rank of another job at a site."""
        rendezvous = f"{self.joint.host}:{random_port()}"
        args = list(map(str, args_for(0.2)))
        with ExitStack() as stack:

            def start(number: int) -> Perf:
                rank = Perf(self.joint.sites[number], args, number, rendezvous)
                self.programs.append(rank)
                return stack.enter_context(rank)

            yield start

    def lives(self) -> None:
        """Checks that all ranks are running."""
        for number, rank in enumerate(self.ranks):
            if rank.process.poll() is not None:
                raise Misbehaved(OTHER, f"rank {number} has ended: {rank.lines()}")

    def fails(self, number: int, since: float) -> None:
        """Checks that a rank's request fails in time with the error for a lost peer, and that its
        log names the peer. `ended` checks its status and bytes later."""
        rank, peers = self.ranks[number], self.joint.addresses_of(1 - number)
        try:
            moment, line = rank.wait_for_line(" failed after ", self.timeout_s + HANG_S)
        except TooLate as late:
            raise Misbehaved(HANG, f"rank {number}: {late}") from None
        took = moment - since
        self.errors.append(took)
        if took > self.timeout_s + SLACK_S:
            raise Misbehaved(OTHER, f"rank {number}: its error came only after {took:.2f} s")
        if not line.endswith(": ncclRemoteError"):
            raise Misbehaved(OTHER, f"rank {number}: {line}")
        peer = "|".join(map(re.escape, peers))
        names = rf"HARP: the link (to|from) ({peer}):\d+ failed: "
        if not any(re.search(names, warning) for warning in rank.warnings):
            raise Misbehaved(OTHER, f"rank {number}: no line names the peer {peer}: {rank.lines()}")

    def ended(self, rank: Perf, *statuses: int) -> None:
        """Checks that a rank ends by itself with one of these statuses and no wrong byte."""
        found = self._wait(rank)
        check_crash(rank)
        wrong = wrong_elements(rank)
        if wrong:
            raise Misbehaved(WRONG, f"{wrong} elements are wrong: {rank.lines()}")
        if found not in statuses:
            raise Misbehaved(OTHER, f"exit status {found}: {rank.lines()}")
        if found and wrong is None:  # else the status says it
            raise Misbehaved(OTHER, f"it does not report its bytes: {rank.lines()}")

    def _wait(self, rank: Perf) -> int:
        try:
            return rank.wait(END_S)
        except TooLate as late:
            raise Misbehaved(HANG, str(late)) from None

    def look_for_crashes(self) -> None:
        for rank in self.programs:
            if rank.process.poll() is not None and rank not in self.killed:
                check_crash(rank)


def check_crash(rank: Perf) -> None:
    """Raises Misbehaved if an ended rank has crashed. SIGKILL is no crash: trials use it."""
    status = rank.process.returncode
    if (
        status < 0
        and status != -signal.SIGKILL
        or any(SANITIZER.search(line) for line in rank.lines())
    ):
        raise Misbehaved(CRASH, f"it ended with {status}: {rank.lines()}")


@dataclass(frozen=True)
class Fault:
    """A fault. strike: injects it, and returns after the immediate effects were checked. ends: the
    required end of the job. replaces: the number of flows with new connections, None: any number.
    keys: for the configurations. size, rate (Gbit/s) and args: for the job."""

    name: str
    what: str
    ends: str
    strike: Callable[[Trial], None]
    replaces: Optional[int] = None
    keys: dict[str, object] = field(default_factory=dict)
    size: str = "4M"
    rate: float = GBIT
    args: Sequence[object] = ()
    run_folder_kib: int = 0  # a memory file system of that size; 0: none
    transports: Sequence[str] = TRANSPORTS
    beyond: bool = False  # it lasts longer than timeout_ms


# -- the trial


def args_for(seconds: float, size: str = "4M", rate: float = GBIT) -> list[object]:
    """An all_reduce that lasts at least `seconds`, verified from the first iteration on."""
    share = rate / GBIT * 4 / int(size.rstrip("M"))
    iterations = int(seconds * ITERATIONS_A_SECOND * share) + 2
    return all_reduce(size, iterations, rate, "--verified")


@contextmanager
def join(transport: str, lab: Optional[Lab], folder: Path, **keys: Any) -> Iterator[Joint]:
    """Two sites; the first one's device has a fault port that reads a file of faults."""
    control = folder / "faults"
    control.touch()
    faults = f"tso=1,control={control}"
    places = [folder / "0", folder / "1"]
    if transport == "wire":
        path = wire_path()
        try:
            sites = [
                wire_site(places[0], path, 1, **{"device": f"fault:{faults}|wire:{path}", **keys}),
                wire_site(places[1], path, 2, **keys),
            ]
            yield Joint(sites, "127.0.0.1", control)
        finally:
            remove_wire(path)
        return
    if transport == "ethdev":
        socket = folder / SOCKET
        sites = [
            ethdev_site(places[0], socket, 1, faults, **keys),
            ethdev_site(places[1], socket, 2, **keys),
        ]
        yield Joint(sites, "127.0.0.1", control)
        return
    assert lab
    port, _, own = transport.partition("-")
    first, second = lab.hosts
    sites = [
        packet_site(places[0], first, bool(own), faults, port, **keys),
        packet_site(places[1], second, bool(own), port=port, **keys),
    ]
    yield Joint(sites, first.address, control)


def join_rails(rails: Rails, folder: Path, **keys: Any) -> Joint:
    """Two sites with several NICs each. Each NIC of the first one has a fault port."""
    controls = [folder / f"faults{nic}" for nic in range(rails.count)]
    sites = [rails.site(folder / str(host.index), host, **keys) for host in rails.lab.hosts]
    for nic, control in enumerate(controls):
        control.touch()
        path = sites[0].folder / f"ztcp{nic}.conf"
        packet = f"packet:nic{nic}"
        path.write_text(path.read_text().replace(packet, f"fault:tso=1,control={control}|{packet}"))
    addresses = [
        [rails.address(host, nic) for nic in range(rails.count)] for host in rails.lab.hosts
    ]
    return Joint(sites, rails.lab.hosts[0].address, controls[0], controls[1:], addresses)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delays signals that end this process. A program that an interrupt left alone could do its
    work later."""
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def small_folder(path: Path, kib: int) -> Iterator[None]:
    """Mounts a tmpfs of `kib` KiB over a folder. Raises LabError if that fails."""
    args = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", str(path)]
    try:
        with _uninterrupted():
            done = subprocess.run(args, capture_output=True, text=True, timeout=10)
        if done.returncode:
            raise LabError(f"{' '.join(args)}: {done.stderr.strip()}; run this as root")
        yield
    finally:  # also after an interrupt that came after the mount
        subprocess.run(["umount", "-l", str(path)], timeout=10, capture_output=True)


def _args(fault: Fault, timeout_s: float, inject_wrong: bool) -> list[object]:
    """The arguments of harp-perf. A job that must succeed ends soon after its fault. A job that
    must fail would otherwise run for an hour."""
    lasts = timeout_s + 2.0 if fault.beyond else 0.6 * timeout_s
    seconds = DELAY_S + lasts + 1.0 if fault.ends == WENT_ON else 3600
    seconds_most = int(timeout_s + HANG_S) + 1  # longer than HARP's own timeout
    args = [*args_for(seconds, fault.size, fault.rate), *fault.args, "--timeout", seconds_most]
    return [*args, "--inject-wrong"] if inject_wrong else args


def _come_to_the_end(trial: Trial) -> None:
    """Waits for the end of the job as long as messages arrive, however slow the machine is."""
    came, since = 0, time.monotonic()
    while any(rank.process.poll() is None for rank in trial.ranks):
        now = sum(seen.get("messages_in", 0) for seen in trial.job.look())
        if now > came:
            came, since = now, time.monotonic()
        elif time.monotonic() - since > trial.timeout_s + HANG_S:
            said = [rank.lines() for rank in trial.ranks]
            raise Misbehaved(HANG, f"no more messages after {came}: {said}")
        time.sleep(0.005)


def _went_on(fault: Fault, trial: Trial) -> None:
    trial.lives()
    _come_to_the_end(trial)
    for rank in trial.ranks:
        trial.ended(rank, 0)
        unexpected = [line for line in rank.warnings if DEVICE_IS_GONE not in line]
        if unexpected:
            raise Misbehaved(OTHER, f"it warned: {unexpected}")
    count = sum(seen["flows_replaced"] for seen in trial.job.seen)
    if fault.replaces not in (None, count):
        raise Misbehaved(OTHER, f"{count} flows were replaced instead of {fault.replaces}")


def _ended(trial: Trial) -> None:
    for rank in trial.ranks:
        if rank in trial.killed:
            rank.wait(END_S)
        else:
            trial.ended(rank, 1)


def _see_it_through(fault: Fault, trial: Trial) -> None:
    trial.job.await_messages(MESSAGES)
    time.sleep(trial.draw.uniform(0, DELAY_S))
    trial.lives()
    fault.strike(trial)
    if fault.ends == WENT_ON:
        _went_on(fault, trial)
    else:
        _ended(trial)


def _judge(fault: Fault, trial: Trial) -> Optional[Misbehaved]:
    """Runs the trial. Returns its failure, None without one. A crash precedes other failures. The
    job of a missed trial may succeed or fail, but must end well-behaved."""
    try:
        try:
            _see_it_through(fault, trial)
        except Missed as missed:
            _come_to_the_end(trial)
            for rank in trial.ranks:
                trial.ended(rank, 0, 1)
            return missed
        except (Misbehaved, TooLate) as bad:
            trial.look_for_crashes()
            return bad if isinstance(bad, Misbehaved) else Misbehaved(OTHER, str(bad))
    except Misbehaved as crash:
        return crash
    return None


@dataclass(frozen=True)
class Setting:
    """The settings of all trials of a run. lab: two hosts, or None if a link in memory joins the
    ranks. inject_wrong: flip a byte in every trial; the trial must then fail."""

    transport: str
    lab: Optional[Lab]
    seed: int
    timeout_ms: int
    inject_wrong: bool = False
    rails: Optional[Rails] = None  # the hosts' NICs, if they have several


def _try(
    fault: Fault, draw: random.Random, setting: Setting, folder: Path
) -> tuple[Trial, Optional[Misbehaved]]:
    """Runs a trial once. Returns it and its failure, None without one."""
    timeout_s = setting.timeout_ms / 1e3
    began = time.monotonic()
    with ExitStack() as stack:
        keys = {"timeout_ms": setting.timeout_ms, **fault.keys}
        joint = (
            join_rails(setting.rails, folder, **keys)
            if setting.rails
            else stack.enter_context(join(setting.transport, setting.lab, folder, **keys))
        )
        for site in joint.sites if fault.run_folder_kib else ():
            stack.enter_context(small_folder(site.run_folder, fault.run_folder_kib))
        args = _args(fault, timeout_s, setting.inject_wrong)
        if setting.rails:
            args += ["--channels", setting.rails.count]  # each NIC has a ring
        running = stack.enter_context(job(joint.sites, joint.host, args, flowing=0))
        shared = setting.transport == "packet"
        programs = list(running.ranks)
        trial = Trial(
            draw, timeout_s, setting.lab, joint, shared, running, programs, rails=setting.rails
        )
        bad = _judge(fault, trial)
    for index, rank in enumerate(trial.programs):
        said = "".join(f"{moment - began:8.3f} {line}\n" for moment, line in rank.said)
        (folder / f"{index}.log").write_text(said + "".join(rank.table))
    return trial, bad


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def run_trial(fault: Fault, number: int, setting: Setting, folder: Path) -> Outcome:
    """Runs one trial in an empty folder, which has the logs of the last try afterwards. The seed,
    the fault and the number determine the random values. Raises LabError if the hosts fail."""
    draw = random.Random(f"{setting.seed}/{fault.name}/{number}")
    outcome = Outcome(fault.name, number, fault.ends)
    began = time.monotonic()
    for outcome.missed in range(TRIES):
        _empty(folder)
        trial, bad = _try(fault, draw, setting, folder)
        if not isinstance(bad, Missed):
            break
    outcome.seconds = time.monotonic() - began
    outcome.error_s = max(trial.errors, default=None)
    if bad:
        outcome.kind, outcome.expected, outcome.text = bad.kind, False, str(bad)
    return outcome
