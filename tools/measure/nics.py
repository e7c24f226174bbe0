# SPDX-License-Identifier: Apache-2.0
"""Hosts with four NICs: the rate over all of them against one, and the loss of one of them.

Two hosts have four NICs each, and every NIC is held to the same rate. A rail joins the NICs of one
index. Runs over one NIC and over all NICs alternate. In an outage, one NIC of a host is set down
while bytes flow, and up again.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

from tools.hosts.jobs import Job, job
from tools.hosts.lab import Lab
from tools.hosts.rails import Rails, add_rails
from tools.hosts.ranks import TooLate, wait_until, wrong_elements
from tools.measure.records import describe_host, load_records
from tools.measure.stats import Summary, increase, ratios, summarize
from tools.measure.tables import markdown
from tools.measure.verdicts import Verdict

SCHEMA = "harp.nics/1"
NICS = 4
MIB = 1 << 20
SAMPLE_S = 0.05
ITERATION_S = 0.25  # over all NICs at their full rate
START_S = 60.0
END_S = 30.0
LIMIT_S = 300.0
RESUME_S = 2.0  # within this time after an outage's begin, the rate must be back at DOWN_LEAST
RETURN_S = 5.0  # the same after its end, at UP_LEAST: flows return to the NIC one by one
DOWN_LEAST, UP_LEAST = 0.6, 0.9
FULL_LEAST = 0.85  # of a NIC's rate: a run over one NIC that is slower was slowed by the machine
DEVICE_LINE = "HARP: the device "  # a NIC went down


@dataclass(frozen=True)
class Load:
    """A job of harp perf. least: the target for the rate over all NICs, in rates over one."""

    name: str
    op: str
    args: Sequence[object]
    keys: dict[str, Any]
    least: float


# Small steps: a ring is idle for some steps at the begin and the end of each iteration.
CHANNELS = Load(
    "all_reduce, 4 channels",
    "all_reduce",
    ("--channels", NICS, "--step", "256K"),
    {},
    3.6,
)
STRIPE = Load(
    "sendrecv, one link, stripe = all",
    "sendrecv",
    ("--step", "1M"),
    {"stripe": "all", "flows": NICS},
    3.4,
)
LOADS = (CHANNELS, STRIPE)


@dataclass(frozen=True)
class Plan:
    """The extent of a measurement. mbit: the rate of a NIC, Mbit/s. seconds: of each run, and of
    each part of an outage."""

    pairs: int
    outages: int
    seconds: float
    mbit: int

    def size_mib(self) -> int:
        return max(1, round(NICS * self.mbit * 1e6 / 8 * ITERATION_S / MIB))

    def iterations(self, nics: int) -> int:
        return max(2, round(self.seconds / ITERATION_S * nics / NICS))


@dataclass
class Run:
    """A run without a fault. gbit: bytes of messages. received: the bytes that each NIC of the last
    host has received."""

    load: str
    nics: int
    pair: int
    gbit: float
    wrong: int
    received: list[int]


@dataclass
class Outage:
    """One NIC set down and up again. Rates in Gbit/s on the wire, of all NICs of the receiving
    host. resumed_s: from the NIC's loss until a quarter of a second has DOWN_LEAST of the rate
    before; None: never. left: the bytes on the NIC during the outage. back: those after it."""

    load: str
    nic: int
    before: float = 0.0
    down: float = 0.0
    up: float = 0.0
    resumed_s: Optional[float] = None
    left: int = 0
    back: int = 0
    wrong: Optional[int] = None


@dataclass
class Nics:
    """All results. Failures are texts."""

    plan: Plan
    runs: list[Run] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def rates(self, load: Load, nics: int) -> dict[int, float]:
        """The rates by pair."""
        return {r.pair: r.gbit for r in self.runs if (r.load, r.nics) == (load.name, nics)}

    def gain(self, load: Load) -> Optional[Summary]:
        """The rate over all NICs in rates over one, by pairs; None without a pair."""
        one, all_nics = self.rates(load, 1), self.rates(load, NICS)
        both = sorted(set(one) & set(all_nics))
        return ratios([all_nics[p] for p in both], [one[p] for p in both]) if both else None


def _args(load: Load, plan: Plan, iterations: int) -> list[object]:
    size = f"{plan.size_mib()}M"
    return [load.op, "-b", size, "-e", size, "-n", iterations, *load.args]


def _complaints(running: Job) -> list[str]:
    """The warnings of the ranks, but not those that a NIC went down."""
    lines = [line for rank in running.ranks for line in rank.warnings]
    return [line for line in lines if DEVICE_LINE not in line]


def run_load(rails: Rails, load: Load, nics: int, pair: int, plan: Plan, folder: Path) -> Run:
    """Runs a load over the first `nics` NICs, in an empty folder. Raises TooLate, and RuntimeError
    if a rank fails."""
    hosts = rails.lab.hosts
    sites = [rails.site(folder / str(h.index), h, range(nics), **load.keys) for h in hosts]
    iterations = plan.iterations(nics)
    out = folder / "records.json"
    args = [*_args(load, plan, iterations), "-w", max(1, iterations // 5), "--json", out]
    before = [rails.bytes_in(hosts[-1], nic) for nic in range(rails.count)]
    with job(sites, hosts[0].address, args, flowing=0) as running:
        statuses = running.finish(LIMIT_S)
        said = [rank.lines() for rank in running.ranks]
    if any(statuses):
        raise RuntimeError(f"{load.name} over {nics} NICs: the ranks ended with {statuses}: {said}")
    (record,) = load_records(out)
    received = [rails.bytes_in(hosts[-1], nic) - before[nic] for nic in range(rails.count)]
    gbit = record["algbw_gbs"] * 8
    return Run(load.name, nics, pair, gbit, record["wrong"], received)


class _Meter:
    """The bytes that the NICs of a rank's host have received, sampled over time."""

    def __init__(self, pid: int, count: int) -> None:
        self._path = Path(f"/proc/{pid}/net/dev")
        self._count = count
        self.timeline: list[tuple[float, float]] = []
        self.sample()

    def nics(self) -> list[int]:
        """The bytes of each NIC now."""
        found = {}
        for line in self._path.read_text().splitlines():
            name, colon, values = line.partition(":")
            if colon:
                found[name.strip()] = int(values.split()[0])
        return [found[f"nic{nic}"] for nic in range(self._count)]

    def sample(self) -> None:
        self.timeline.append((time.monotonic(), float(sum(self.nics()))))

    def watch(self, seconds: float) -> float:
        """Samples for this time. Returns the rate in Gbit/s."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            time.sleep(SAMPLE_S)
            self.sample()
        return self.rate(began, time.monotonic())

    def rate(self, begin: float, end: float) -> float:
        return increase(self.timeline, begin, end) * 8 / 1e9 / (end - begin)

    def first_at(self, least: float, since: float) -> Optional[float]:
        """Seconds from `since` to the end of the first quarter of a second with that rate."""
        for moment, _ in self.timeline:
            if moment >= since + 0.25 and self.rate(moment - 0.25, moment) >= least:
                return moment - since
        return None


def run_outage(rails: Rails, load: Load, nic: int, plan: Plan, folder: Path) -> Outage:
    """Sets a NIC of host 0 down while a load runs, and up again, in an empty folder. Raises
    TooLate, and RuntimeError if a rank fails."""
    hosts = rails.lab.hosts
    sites = [rails.site(folder / str(h.index), h, **load.keys) for h in hosts]
    args = [*_args(load, plan, 1_000_000), "--verified", "--timeout", 60]
    outage = Outage(load.name, nic)
    with job(sites, hosts[0].address, args, flowing=0) as running:
        running.await_count(1, "messages_in", 1, START_S)
        meter = _Meter(running.ranks[1].process.pid, rails.count)
        _await_bytes(meter, running)
        meter.watch(plan.seconds / 2)  # past slow start
        outage.before = meter.watch(plan.seconds)
        try:
            began = time.monotonic()
            rails.set_link(hosts[0], nic, False)
            at_once = meter.nics()[nic]
            meter.watch(RESUME_S)
            outage.down = meter.watch(plan.seconds)
            outage.left = meter.nics()[nic] - at_once
        finally:
            rails.set_link(hosts[0], nic, True)
        outage.resumed_s = meter.first_at(DOWN_LEAST * outage.before, began)
        at_once = meter.nics()[nic]
        meter.watch(RETURN_S)
        outage.up = meter.watch(plan.seconds)
        outage.back = meter.nics()[nic] - at_once
        _end(running, load)
        outage.wrong = sum(wrong_elements(rank) or 0 for rank in running.ranks)
    return outage


def _await_bytes(meter: _Meter, running: Job) -> None:
    """Waits until every NIC has received data."""
    before = meter.nics()

    def flows() -> bool:
        return all(now > then + MIB / 2 for then, now in zip(before, meter.nics()))

    wait_until(flows, START_S, "not every NIC receives", running.ranks)


def _end(running: Job, load: Load) -> None:
    """Ends the ranks, which then report their bytes. Raises RuntimeError if they had failed or
    warned before."""
    failed = [rank.lines() for rank in running.ranks if rank.process.poll() is not None]
    complaints = _complaints(running)
    if failed or complaints:
        raise RuntimeError(f"{load.name}: errors in an outage: {failed or complaints}")
    running.ranks[0].signal(15)
    for rank in running.ranks:
        rank.wait(END_S)
    if not any(wrong_elements(rank) is not None for rank in running.ranks):
        raise RuntimeError(f"{load.name}: the ranks do not report their bytes")


class Bench:
    """Runs a plan. `say` receives one line for each event."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.found = Nics(plan)
        self._say = say

    def run(self) -> Nics:
        plan = self.found.plan
        with Lab(2, "veth-1500") as lab:
            rails = add_rails(lab, NICS)
            rails.shape(f"{plan.mbit}mbit")
            for pair in range(plan.pairs):
                for load in LOADS:
                    for nics in (1, NICS) if pair % 2 == 0 else (NICS, 1):
                        self._one(rails, load, nics, pair)
            for number in range(plan.outages):
                for load in LOADS:
                    self._outage(rails, load, number % NICS)
        return self.found

    def _try(self, what: str, do: Callable[[Path], str]) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="harp-nics-") as folder:
                self._say(f"{what}: {do(Path(folder))}")
        except (TooLate, RuntimeError) as error:
            self.found.failures.append(f"{what}: {error}")
            self._say(f"FAIL {what}: {error}")

    def _one(self, rails: Rails, load: Load, nics: int, pair: int) -> None:
        def do(folder: Path) -> str:
            run = run_load(rails, load, nics, pair, self.found.plan, folder)
            self.found.runs.append(run)
            if run.wrong:
                raise RuntimeError(f"{run.wrong} elements are wrong")
            return f"{run.gbit:.2f} Gbit/s"

        self._try(f"{load.name}, {nics} NIC{'s' if nics > 1 else ''}, pair {pair + 1}", do)

    def _outage(self, rails: Rails, load: Load, nic: int) -> None:
        def do(folder: Path) -> str:
            seen = run_outage(rails, load, nic, self.found.plan, folder)
            self.found.outages.append(seen)
            if seen.wrong:
                raise RuntimeError(f"{seen.wrong} elements are wrong")
            return f"{seen.before:.2f}, {seen.down:.2f}, {seen.up:.2f} Gbit/s"

        self._try(f"{load.name}, NIC {nic} down and up", do)


# -- output


def rates_table(found: Nics) -> str:
    header = ["operation", "one NIC, Gbit/s", "four NICs, Gbit/s", "four over one", "target"]
    lines = []
    for load in LOADS:
        rates = [list(found.rates(load, nics).values()) for nics in (1, NICS)]
        cells = [summarize(one).text() if one else "–" for one in rates]
        gain = found.gain(load)
        lines.append([load.name, *cells, gain.text() if gain else "–", f"≥ {load.least}"])
    return markdown(header, lines, [1, 2, 3, 4])


def _shares(found: Nics, load: Load) -> dict[str, list[float]]:
    """By part of the outage: the rates in rates before it."""
    seen = [one for one in found.outages if one.load == load.name and one.before]
    return {
        "down": [one.down / one.before for one in seen],
        "up": [one.up / one.before for one in seen],
    }


def outages_table(found: Nics) -> str:
    header = [
        "operation",
        "before, Gbit/s",
        "down over before",
        "up over before",
        "resumed after s",
    ]
    lines = []
    for load in LOADS:
        seen = [one for one in found.outages if one.load == load.name]
        if not seen:
            continue
        shares = _shares(found, load)
        times = [one.resumed_s for one in seen if one.resumed_s is not None]
        lines.append(
            [
                load.name,
                summarize([one.before for one in seen]).text(),
                *(summarize(shares[part]).text() if shares[part] else "–" for part in shares),
                summarize(times).text() if times else "never",
            ]
        )
    return markdown(header, lines, [1, 2, 3, 4])


def verdicts(found: Nics) -> list[Verdict]:
    """An outage is judged over the striped link. Two channels share a NIC during an outage without
    striping, and an iteration waits for them: half of the rate is then all that can be left."""
    judged = []
    for load in LOADS:
        gain = found.gain(load)
        text = f"{load.name}: four NICs ≥ {load.least}× one"
        judged.append(
            Verdict(f"{text}: {gain.median:.2f}×", gain.median >= load.least)
            if gain
            else Verdict(f"{text}: not measured", False)
        )
    for part, least in (("down", DOWN_LEAST), ("up", UP_LEAST)):
        shares = _shares(found, STRIPE)[part]
        text = f"{STRIPE.name}, one NIC {part}: rate ≥ {least}× of before"
        judged.append(
            Verdict(f"{text}: {summarize(shares).median:.2f}×", summarize(shares).median >= least)
            if shares
            else Verdict(f"{text}: not measured", False)
        )
    wrong = sum(run.wrong for run in found.runs) + sum(one.wrong or 0 for one in found.outages)
    count = len(found.failures)
    judged.append(Verdict(f"0 wrong, no error: {wrong} wrong, {count} errors", not wrong + count))
    return judged


def remarks(found: Nics) -> list[str]:
    """Says which figures the machine has limited, and not the NICs."""
    said = []
    for load in LOADS:
        rates = list(found.rates(load, 1).values())
        share = summarize(rates).median * 1000 / found.plan.mbit if rates else 1.0
        if share < FULL_LEAST:
            said.append(
                f"{load.name}: one NIC reached only {share:.0%} of its rate. This machine is too "
                "slow or too busy for the measurement: lower --nic-rate."
            )
    return said


def save(found: Nics, path: Path) -> None:
    document = {
        "schema": SCHEMA,
        "host": describe_host(),
        **asdict(found),
        "targets": [{"text": one.text, "met": one.met} for one in verdicts(found)],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
