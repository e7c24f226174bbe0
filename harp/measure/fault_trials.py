# SPDX-License-Identifier: Apache-2.0
"""Faults that strike an all-reduce while its bytes flow, one trial each, and what came of it.

A trial starts two ranks of harp-perf that verify every iteration, waits for bytes to flow and a
random moment more, and lets a fault strike. The job then goes on to its end, or its ranks end
with an error in time, as the fault's kind demands; everything else is told by name.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from harp.testing.jobs import Job, Joint, all_reduce, job
from harp.testing.lab import Lab, LabError
from harp.testing.ranks import (
    Perf,
    TooLate,
    packet_site,
    wait_until,
    wire_path,
    wire_site,
    wrong_elements,
)

TRANSPORTS = ("packet", "packet-own", "wire")
FLOWS = 4
GBIT = 0.5  # offered; with 4 MiB an iteration takes 67 ms
ITERATIONS_A_SECOND = 15
MESSAGES = 8  # have come to each rank before a fault
DELAY_S = 0.3  # the random moment
SLACK_S = 1.0  # beyond timeout_ms: ticks, and a machine that is busy
HANG_S = 30.0  # beyond timeout_ms: it does not end by itself any more
END_S = 30.0  # for a rank to end that has failed, or is done

WENT_ON, ERROR = "went on", "error"
HANG, CRASH, WRONG, OTHER = "hang", "crash", "wrong", "other"

DEVICE_IS_GONE = "the device of instance"
SANITIZER = re.compile(r"ERROR: \w+Sanitizer|runtime error:")


class Misbehaved(Exception):
    """A trial did not go as its fault demands; kind: HANG, CRASH, WRONG or OTHER."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass
class Outcome:
    """What came of a trial. error_s: from the fault to the last error that it had to cause."""

    fault: str
    number: int
    kind: str
    expected: bool = True
    text: str = ""
    error_s: Optional[float] = None
    seconds: float = 0.0
    logs: Optional[str] = None


@dataclass
class Trial:
    """A job that a fault strikes. `errors`: seconds from the fault to each error."""

    draw: random.Random
    timeout_s: float
    lab: Optional[Lab]
    joint: Joint
    shared: bool  # several processes may serve one address
    job: Job
    programs: list[Perf]  # all that were started
    killed: list[Perf] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    @property
    def ranks(self) -> list[Perf]:
        return self.job.ranks

    def one(self) -> int:
        """Either rank."""
        return self.draw.randrange(2)

    def short(self) -> float:
        """Seconds that a job has to outlive."""
        return self.draw.uniform(0.1, 0.6) * self.timeout_s

    def kill(self, number: int) -> float:
        """The moment."""
        self.killed.append(self.ranks[number])
        return self.ranks[number].signal(signal.SIGKILL)

    @contextmanager
    def another_job(self) -> Iterator[Callable[[int], Perf]]:
        """Starts its ranks at the sites, one by one."""
        meeting = f"{self.joint.host}:{self.draw.randrange(20000, 30000)}"
        words = list(map(str, words_for(0.2)))
        with ExitStack() as stack:

            def start(number: int) -> Perf:
                rank = Perf(self.joint.sites[number], words, number, meeting)
                self.programs.append(rank)
                return stack.enter_context(rank)

            yield start

    def lives(self) -> None:
        """The job was there when the fault struck, and is there yet."""
        for number, rank in enumerate(self.ranks):
            if rank.process.poll() is not None:
                raise Misbehaved(OTHER, f"rank {number} has ended: {rank.lines()}")

    def fails(self, number: int, since: float) -> None:
        """A rank's request ends with the error for a lost peer, in time, and its log names that
        peer; its status and its bytes are looked at when it has ended."""
        rank, peer = self.ranks[number], self.joint.sites[1 - number].address
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
        names = rf"HARP: the link (to|from) {re.escape(peer)}:\d+ failed: "
        if not any(re.search(names, warning) for warning in rank.warnings):
            raise Misbehaved(OTHER, f"rank {number}: no line names the peer {peer}: {rank.lines()}")

    def ended(self, rank: Perf, status: int) -> None:
        """A rank comes to its end by itself, with this status and no wrong byte."""
        found = self._wait(rank)
        check_crash(rank)
        wrong = wrong_elements(rank)
        if wrong:
            raise Misbehaved(WRONG, f"{wrong} elements are wrong: {rank.lines()}")
        if found != status:
            raise Misbehaved(OTHER, f"exit status {found}: {rank.lines()}")
        if status and wrong is None:  # else the status says it
            raise Misbehaved(OTHER, f"no word about its bytes: {rank.lines()}")

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
    """Of a rank that has ended. Whom SIGKILL ended did not crash: that is how trials end, too."""
    status = rank.process.returncode
    if (
        status < 0
        and status != -signal.SIGKILL
        or any(SANITIZER.search(line) for line in rank.lines())
    ):
        raise Misbehaved(CRASH, f"it ended with {status}: {rank.lines()}")


# -- what strikes


def kill(trial: Trial) -> None:
    victim = trial.one()
    trial.fails(1 - victim, trial.kill(victim))


def stop_short(trial: Trial) -> None:
    victim = trial.ranks[trial.one()]
    victim.signal(signal.SIGSTOP)
    time.sleep(trial.short())
    victim.signal(signal.SIGCONT)


def stop_long(trial: Trial) -> None:
    victim = trial.one()
    trial.fails(1 - victim, trial.ranks[victim].signal(signal.SIGSTOP))
    # It wakes up in a world that has moved on.
    trial.fails(victim, trial.ranks[victim].signal(signal.SIGCONT))


@contextmanager
def _link_down(trial: Trial) -> Iterator[float]:
    assert trial.lab
    host = trial.lab.hosts[trial.one()]
    try:
        host.set_link(False)
        yield time.monotonic()
    finally:
        host.set_link(True)


def link_short(trial: Trial) -> None:
    with _link_down(trial):
        time.sleep(trial.short())


def link_long(trial: Trial) -> None:
    with _link_down(trial) as since:
        for number in (0, 1):
            trial.fails(number, since)


def blackhole_one(trial: Trial) -> None:
    swallow_one(trial.job, trial.joint, trial.draw)


def blackhole_all(trial: Trial) -> None:
    trial.joint.impair("blackhole=1,side=both")
    since = time.monotonic()
    for number in (0, 1):
        trial.fails(number, since)


def replaced(trial: Trial) -> None:
    """The new process is one of a new job, which has to be able to do its work."""
    victim = trial.one()
    since = trial.kill(victim)
    trial.ranks[victim].wait(END_S)  # until then its claims are its own
    with trial.another_job() as start:
        ranks = [start(victim)]
        if trial.shared:
            ranks.append(start(1 - victim))
        trial.fails(1 - victim, since)
        if not trial.shared:
            trial.ended(trial.ranks[1 - victim], 1)
            ranks.append(start(1 - victim))
        for rank in ranks:
            trial.ended(rank, 0)


def config_removed(trial: Trial) -> None:
    for site in trial.joint.sites:
        for path in site.folder.glob("ztcp*.conf"):
            path.unlink()


def memory(trial: Trial) -> None:
    """A rank's application is busy elsewhere: what its peer sends meanwhile waits in packet
    memory, and is more than fits."""
    victim = trial.one()
    before = trial.job.count(victim, "tcp_memory_drops")
    trial.ranks[victim].signal(signal.SIGUSR1)

    def exhausted() -> bool:
        count = trial.job.look()[victim]
        full = count["packets_used"] >= 0.95 * count["packets_total"]
        return full or count["tcp_memory_drops"] > before

    wait_until(exhausted, END_S, "packet memory does not fill up", trial.ranks)


def fill(trial: Trial) -> None:
    """Both run folders, up to the last byte."""
    for site in trial.joint.sites:
        with open(site.run_folder / "filler", "wb", buffering=0) as file:
            try:
                while file.write(bytes(65536)):
                    pass
            except OSError:
                continue


def folder_full_killed(trial: Trial) -> None:
    """There is no room for the trace that the error asks for."""
    fill(trial)
    kill(trial)
    for site in trial.joint.sites:
        if list(site.run_folder.glob("*.trace")):
            raise Misbehaved(OTHER, "the run folder was not full: a trace is there")


@dataclass(frozen=True)
class Fault:
    """`strike` comes back when what is expected at once has been seen; ends: how the job has to
    end; replaces: how many flows get new connections, None: any number. keys: of the
    configurations; size, rate (Gbit/s) and words: of the job."""

    name: str
    what: str
    ends: str
    strike: Callable[[Trial], None]
    replaces: Optional[int] = None
    keys: dict[str, object] = field(default_factory=dict)
    size: str = "4M"
    rate: float = GBIT
    words: Sequence[object] = ()
    run_folder_kib: int = 0  # a memory file system of that size; 0: none
    transports: Sequence[str] = TRANSPORTS


PACKET = ("packet", "packet-own")

FAULTS = (
    Fault("kill", "a rank is killed", ERROR, kill),
    Fault("stop-short", "a rank is stopped for less than timeout_ms", WENT_ON, stop_short),
    Fault("stop-long", "a rank is stopped for longer", ERROR, stop_long),
    Fault("link-short", "a host's link is down for less than timeout_ms", WENT_ON, link_short,
          transports=PACKET),
    Fault("link-long", "a host's link is down for longer", ERROR, link_long, transports=PACKET),
    Fault("blackhole-one", "one flow of four is swallowed", WENT_ON, blackhole_one, 1,
          {"flows": FLOWS}),
    Fault("blackhole-all", "all packets are swallowed", ERROR, blackhole_all,
          keys={"flows": FLOWS}),
    Fault("replaced", "another process takes a killed rank's address", ERROR, replaced,
          transports=PACKET),
    Fault("config-removed", "both configurations are removed", WENT_ON, config_removed),
    # Packet memory is 16 MiB: the first 20 MiB of an iteration wait for nothing that comes back.
    Fault("memory", "a rank's packet memory is exhausted", WENT_ON, memory, keys={"flows": 8},
          size="40M", rate=2.0, words=("--step", "10M", "--pause", "600")),
    Fault("folder-full", "both run folders are full", WENT_ON, fill, run_folder_kib=1024),
    Fault("folder-full-killed", "the same, and then a rank is killed", ERROR, folder_full_killed,
          run_folder_kib=1024),
)  # fmt: skip


# -- the trial


def words_for(seconds: float, size: str = "4M", rate: float = GBIT) -> list[object]:
    """An all_reduce that lasts at least so long, verified from the first iteration on."""
    share = rate / GBIT * 4 / int(size.rstrip("M"))
    iterations = int(seconds * ITERATIONS_A_SECOND * share) + 2
    return all_reduce(size, iterations, rate, "--verified")


def swallow_one(running: Job, joint: Joint, draw: random.Random) -> float:
    """One flow's packets are swallowed from now on; seconds until it was replaced."""
    site = draw.randrange(2)
    before = running.count(site, "flows_replaced")
    flow = running.grows(draw.randrange(FLOWS), site)
    joint.swallow(flow, draw.choice(("tx", "rx", "both")))
    return running.await_count(site, "flows_replaced", before + 1)


@contextmanager
def join(transport: str, lab: Optional[Lab], folder: Path, **keys: object) -> Iterator[Joint]:
    """Two sites, of which the first one's device obeys a file of faults."""
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
            for left in path.parent.glob(f"{path.name}*"):  # a killed end leaves files
                left.unlink()
        return
    assert lab
    own = transport == "packet-own"
    first, second = lab.hosts
    yield Joint(
        [
            packet_site(places[0], first, own, faults, **keys),
            packet_site(places[1], second, own, **keys),
        ],
        first.address,
        control,
    )


@contextmanager
def small_folder(path: Path, kib: int) -> Iterator[None]:
    """A memory file system over a folder. LabError if it cannot be mounted."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", str(path)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10)
        if done.returncode:
            raise LabError(f"{' '.join(words)}: {done.stderr.strip()}; run this as root")
        yield
    finally:  # also where mount was done, and then interrupted
        subprocess.run(["umount", "-l", str(path)], timeout=10, capture_output=True)


def _words(fault: Fault, timeout_s: float, inject_wrong: bool) -> list[object]:
    """For harp-perf. A job that has to go on ends soon behind its fault; one that has to end with
    an error would not end by itself."""
    seconds = DELAY_S + 0.6 * timeout_s + 1.0 if fault.ends == WENT_ON else 3600
    patience = int(timeout_s + HANG_S) + 1  # HARP has to give up first
    words = [*words_for(seconds, fault.size, fault.rate), *fault.words, "--timeout", patience]
    return [*words, "--inject-wrong"] if inject_wrong else words


def _come_to_the_end(trial: Trial) -> None:
    """However slow this machine is: as long as messages come."""
    came, since = 0, time.monotonic()
    while any(rank.process.poll() is None for rank in trial.ranks):
        now = sum(seen.get("messages_in", 0) for seen in trial.job.look())
        if now > came:
            came, since = now, time.monotonic()
        elif time.monotonic() - since > trial.timeout_s + HANG_S:
            said = [rank.lines() for rank in trial.ranks]
            raise Misbehaved(HANG, f"{came} messages have come, and no more: {said}")
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
        raise Misbehaved(OTHER, f"{count} flows were replaced, and not {fault.replaces}")


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
    """Sees the trial through; what was wrong with it. A crash explains all else."""
    try:
        try:
            _see_it_through(fault, trial)
        except (Misbehaved, TooLate) as bad:
            trial.look_for_crashes()
            return bad if isinstance(bad, Misbehaved) else Misbehaved(OTHER, str(bad))
    except Misbehaved as crash:
        return crash
    return None


@dataclass(frozen=True)
class Setting:
    """What all trials of a run have in common. lab: two hosts, or None where a wire in memory
    joins the ranks. inject_wrong: flip a byte in every trial, which has to be noticed."""

    transport: str
    lab: Optional[Lab]
    seed: int
    timeout_ms: int
    inject_wrong: bool = False


def run_trial(fault: Fault, number: int, setting: Setting, folder: Path) -> Outcome:
    """One trial in an empty folder, where logs lie afterwards. The seed, the fault and the number
    decide what is random. LabError if the hosts do not do what they are told."""
    draw = random.Random(f"{setting.seed}/{fault.name}/{number}")
    timeout_s = setting.timeout_ms / 1e3
    began = time.monotonic()
    with ExitStack() as stack:
        keys = {"timeout_ms": setting.timeout_ms, **fault.keys}
        joint = stack.enter_context(join(setting.transport, setting.lab, folder, **keys))
        for site in joint.sites if fault.run_folder_kib else ():
            stack.enter_context(small_folder(site.run_folder, fault.run_folder_kib))
        words = _words(fault, timeout_s, setting.inject_wrong)
        running = stack.enter_context(job(joint.sites, joint.host, words, flowing=0))
        shared = setting.transport == "packet"
        trial = Trial(draw, timeout_s, setting.lab, joint, shared, running, list(running.ranks))
        bad = _judge(fault, trial)
    for index, rank in enumerate(trial.programs):
        said = "".join(f"{moment - began:8.3f} {line}\n" for moment, line in rank.said)
        (folder / f"{index}.log").write_text(said + "".join(rank.table))
    outcome = Outcome(fault.name, number, fault.ends, seconds=time.monotonic() - began)
    outcome.error_s = max(trial.errors, default=None)
    if bad:
        outcome.kind, outcome.expected, outcome.text = bad.kind, False, str(bad)
    return outcome
