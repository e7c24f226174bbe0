# SPDX-License-Identifier: Apache-2.0
"""The command tools/soak: sends many messages of mixed sizes both ways, and checks for leaks.

Two ranks of harp-perf send each other messages of up to 1 MiB, mostly small, and verify every byte.
The command samples their resident memory and descriptors. Neither may grow from an early to a late
part of the messages.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Optional

import click

from harp.paths import nccl_plugin_path, perf_program
from tools.hosts.jobs import Job, job
from tools.hosts.lab import Lab, LabError
from tools.hosts.ranks import TooLate, packet_site, wrong_elements
from tools.measure.options import first_option, json_option
from tools.measure.priority import going_first
from tools.measure.records import describe_host

SCHEMA = "harp.soak/1"
LARGEST = "1M"  # the mix is log-uniform in two ranges, see harp/bench/op_stream.c
MESSAGES = 10_000_000
UNLIMITED = 2_000_000_000  # both ways together; harp-perf takes half of it each way
OUTSTANDING = 32
SAMPLE_S = 0.05  # least interval; later a thousandth of the time so far
PROGRESS_S = 10.0
STALLED_S = 60.0  # without a message on a busy machine
END_S = 30.0

# The maximum in the last fifth of the messages may exceed the maximum in the second fifth by these
# values. In the first fifth, caches, rings and pools are touched for the first time. A longer burst
# than before touches more of the packet port's 2 MiB for received frames at any time.
EARLY, LATE = (0.2, 0.4), (0.8, 1.0)
GROWTH_KIB = 3072
GROWTH_DESCRIPTORS = 0


@dataclass(frozen=True)
class Sample:
    """A sample of both ranks, in their order. seconds: since the start. messages: received by both
    together."""

    seconds: float
    messages: int
    resident_kib: tuple[int, ...]
    descriptors: tuple[int, ...]


@dataclass
class Soak:
    """The result of a run."""

    wanted: int
    messages: int = 0
    seconds: float = 0.0
    wrong: Optional[int] = None
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def _sample(running: Job, began: float) -> Sample:
    """Takes a sample. Raises OSError if a rank has ended."""
    pids = [rank.process.pid for rank in running.ranks]
    messages = sum(counts.get("messages_in", 0) for counts in running.look())
    resident = []
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        line = next((line for line in status.splitlines() if line.startswith("VmRSS:")), None)
        if line is None:
            raise ProcessLookupError(f"process {pid} has ended")
        resident.append(int(line.split()[1]))
    descriptors = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
    return Sample(time.monotonic() - began, messages, tuple(resident), tuple(descriptors))


def growth(samples: list[Sample]) -> list[str]:
    """The growth beyond the limits, as text. Also reports too few samples."""
    most = max((sample.messages for sample in samples), default=0)

    def within(span: tuple[float, float]) -> list[Sample]:
        low, high = span
        return [one for one in samples if most and low <= one.messages / most <= high]

    early, late = within(EARLY), within(LATE)
    if not early or not late:
        return ["too few samples to detect growth: send more messages (--messages)"]
    found = []
    for rank in range(len(samples[0].resident_kib)):
        for what, unit, allowed, values in (
            ("resident memory", " KiB", GROWTH_KIB, lambda one: one.resident_kib[rank]),
            ("descriptors", "", GROWTH_DESCRIPTORS, lambda one: one.descriptors[rank]),
        ):
            before, after = max(map(values, early)), max(map(values, late))
            if after > before + allowed:
                found.append(
                    f"rank {rank}: {what} grew from {before} to {after}{unit}, by more than "
                    f"{allowed}{unit}, between the second and the last fifth of the messages"
                )
    return found


def _tell(soak: Soak, sample: Sample) -> None:
    rate = sample.messages / sample.seconds if sample.seconds else 0
    wanted = "" if soak.wanted == UNLIMITED else f" of {soak.wanted}"
    click.echo(
        f"[{sample.seconds:5.0f} s] {sample.messages}{wanted} messages, {rate:.0f}/s; "
        f"resident {' and '.join(map(str, sample.resident_kib))} KiB; "
        f"descriptors {' and '.join(map(str, sample.descriptors))}"
    )


def _watch(running: Job, soak: Soak, limit_s: Optional[float]) -> bool:
    """Samples until a rank ends, or until the time limit. Returns whether the limit was reached
    with messages left. Raises TooLate if no message arrives for STALLED_S."""
    began = moved = time.monotonic()
    told = 0.0
    while all(rank.process.poll() is None for rank in running.ranks):
        try:
            sample = _sample(running, began)
        except OSError:
            break
        if not soak.samples or sample.messages > soak.messages:
            moved = time.monotonic()
            soak.samples.append(sample)
        soak.messages, soak.seconds = sample.messages, sample.seconds
        if sample.seconds - told > PROGRESS_S:
            told = sample.seconds
            _tell(soak, sample)
        if limit_s and sample.seconds > limit_s:
            return sample.messages < soak.wanted  # else the ranks are about to end
        if time.monotonic() - moved > STALLED_S:
            raise TooLate(f"no message arrived in {STALLED_S:.0f} s")
        time.sleep(max(SAMPLE_S, sample.seconds / 1000))
    return False


def run_soak(
    lab: Lab, folder: Path, messages: int, limit_s: Optional[float], inject_wrong: bool = False
) -> Soak:
    """Runs a soak test. messages: both ways together. limit_s: the ranks are ended after this time;
    the messages so far count."""
    soak = Soak(messages)
    args: list[object] = ["mixed", "-b", LARGEST, "-e", LARGEST, "-n", (messages + 1) // 2]
    args += ["--outstanding", OUTSTANDING, "--timeout", int(STALLED_S)]
    args += ["--inject-wrong"] if inject_wrong else []
    sites = [packet_site(folder / str(host.index), host) for host in lab.hosts]
    with ExitStack() as stack:
        running = stack.enter_context(job(sites, lab.hosts[0].address, args, flowing=1))
        try:
            over = _watch(running, soak, limit_s)
            for rank in running.ranks if over else ():
                rank.signal(signal.SIGTERM)
            statuses = [rank.wait(END_S) for rank in running.ranks]
        except TooLate as late:
            soak.failures.append(str(late))
            return soak
        soak.wrong = _wrong(running)
        if statuses == [0, 0]:
            soak.messages = messages  # the last sample may have fewer
        elif not over and not soak.wrong:
            said = [rank.lines() for rank in running.ranks]
            soak.failures.append(f"the ranks ended with {statuses}: {said}")
    if soak.wrong != 0:
        soak.failures.append(f"{soak.wrong} bytes are wrong")
    soak.failures += growth(soak.samples)
    return soak


def _wrong(running: Job) -> Optional[int]:
    """The wrong bytes of both ranks; None if a rank does not report them."""
    if all(rank.process.returncode == 0 for rank in running.ranks):
        return 0
    told = [wrong_elements(rank) for rank in running.ranks]
    if any(told):
        return sum(one or 0 for one in told)
    return None if None in told else 0


def _leave(number: int, frame: Optional[FrameType]) -> None:
    raise SystemExit(128 + number)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--messages",
    type=click.IntRange(1000),
    help=f"Number of messages, both ways together.  [default: {MESSAGES}; no limit with --minutes]",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0.05),
    help="Time limit: end then, even if messages are left.",
)
@click.option("--inject-wrong", is_flag=True, help="Flip a byte; the run must then fail.")
@json_option("the samples and the result")
@first_option
def main(
    messages: Optional[int],
    minutes: Optional[float],
    inject_wrong: bool,
    json_path: Optional[Path],
    first: bool,
) -> None:
    """Send many messages of mixed sizes both ways over the packet port; verify every byte.

    From the second to the last fifth of the messages, the resident memory of a rank
    may grow by 3 MiB at most, and its number of descriptors not at all.

    Exit: 0 if that holds and no byte is wrong, 1 if not, 2 on wrong usage.
    """
    if os.geteuid() != 0:
        raise click.UsageError("hosts are network namespaces: run this as root")
    signal.signal(signal.SIGTERM, _leave)
    try:
        perf_program(), nccl_plugin_path()
        with going_first(first), Lab(hosts=2, wire="veth-1500") as lab, ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            limit_s = minutes * 60 if minutes else None
            wanted = messages or (UNLIMITED if minutes else MESSAGES)
            soak = run_soak(lab, Path(folder), wanted, limit_s, inject_wrong)
    except (LabError, TooLate, FileNotFoundError) as error:
        raise click.ClickException(str(error)) from None
    if soak.samples:
        _tell(soak, soak.samples[-1])
    click.echo(f"{soak.messages} messages in {soak.seconds:.0f} s, wrong: {soak.wrong}")
    if json_path:
        document = {"schema": SCHEMA, "host": describe_host(), **asdict(soak)}
        json_path.write_text(json.dumps(document, indent=1) + "\n")
    for failure in soak.failures:
        click.echo(f"FAIL {failure}", err=True)
    sys.exit(1 if soak.failures else 0)


if __name__ == "__main__":
    main(prog_name="tools/soak")
