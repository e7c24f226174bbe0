# SPDX-License-Identifier: Apache-2.0
"""Jobs of harp-perf whose paths are interfered with while their bytes flow."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from harp.observe.statfile import Flow
from tools.hosts.ranks import START_S, Perf, Site, TooLate, wait_until


@dataclass
class Joint:
    """Two sites that reach each other. The first one's device obeys a file of faults.

    `host` is an address at which the other ranks find the first one.
    """

    sites: list[Site]
    host: str
    control: Path

    def impair(self, spec: str = "") -> None:
        """What the fault port does from now on (within 10 ms); nothing: all passes again."""
        fresh = self.control.with_suffix(".new")
        fresh.write_text(spec)
        os.replace(fresh, self.control)  # a reader sees the old text or the new one

    def swallow(self, flow: Flow, side: str) -> None:
        """No packet passes any more of a connection by which either site sends; side: tx, rx or
        both, as the first one sees it."""
        self.impair(f"blackhole=1,port={flow.local.rpartition(':')[2]},side={side}")


@dataclass
class Job:
    """The ranks of a job while they run; what each site has counted, as far as was seen."""

    sites: Sequence[Site]
    ranks: list[Perf]
    seen: list[dict[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen = [{} for _ in self.sites]

    def look(self) -> list[dict[str, int]]:
        """The counters of each site; of a process that has gone, the last that were seen."""
        for number, site in enumerate(self.sites):
            for process in site.published():
                self.seen[number] = process.totals
        return self.seen

    def count(self, number: int, name: str) -> int:
        return self.look()[number].get(name, 0)

    def await_count(self, number: int, name: str, least: int, timeout: float = 15) -> float:
        """Waits until a site's counter is so high; the seconds that it took."""
        began = time.monotonic()
        wait_until(
            lambda: self.count(number, name) >= least,
            timeout,
            f"{name} of site {number} stays below {least}",
            self.ranks,
        )
        return time.monotonic() - began

    def await_messages(self, least: int) -> None:
        """Waits until so many have come to each site."""
        for number in range(len(self.sites)):
            self.await_count(number, "messages_in", least, START_S)

    def sending(self, number: int) -> dict[int, Flow]:
        """The connections by which a site sends, by their flows' numbers."""
        flows = [flow for process in self.sites[number].published() for flow in process.flows]
        return {flow.flow: flow for flow in flows if flow.direction == "S"}

    def grows(self, number: int, site: int = 0) -> Flow:
        """A flow by which a site sends, once it is seen to carry data."""
        seen: dict[str, Flow] = {}

        def moved() -> Optional[Flow]:
            flow = self.sending(site).get(number)
            if not flow:
                return None
            before = seen.setdefault(flow.local, flow)
            return flow if flow.bytes_out > before.bytes_out + 100_000 else None

        why = f"flow {number} of site {site} carries nothing"
        found: Flow = wait_until(moved, 5, why, self.ranks)
        return found

    def finish(self, timeout: float = 60) -> list[int]:
        """The ranks' exit statuses; counters are watched until the end. TooLate after timeout s."""
        limit = time.monotonic() + timeout
        while any(rank.process.poll() is None for rank in self.ranks):
            self.look()
            if time.monotonic() > limit:
                raise TooLate(f"not done in {timeout} s: {[rank.lines() for rank in self.ranks]}")
            time.sleep(0.005)
        return [rank.wait(5) for rank in self.ranks]

    def ends_well(self) -> None:
        """Every rank exits with 0 and has warned of nothing; every byte was right."""
        assert self.finish() == [0] * len(self.ranks), [rank.lines() for rank in self.ranks]
        assert [rank.warnings for rank in self.ranks] == [[]] * len(self.ranks)
        wrong = self.ranks[0].wrong()
        assert wrong and not any(wrong), wrong


@contextmanager
def job(
    sites: Sequence[Site], host: str, words: Sequence[object], flowing: int = 8
) -> Iterator[Job]:
    """Ranks of harp-perf, one at each site. Goes on once so many messages have come to each."""
    meeting = f"{host}:{20000 + secrets.randbelow(10000)}"
    with ExitStack() as stack:
        made = Job(
            sites,
            [
                stack.enter_context(Perf(site, list(map(str, words)), number, meeting, len(sites)))
                for number, site in enumerate(sites)
            ],
        )
        if flowing:
            made.await_messages(flowing)
        yield made


def all_reduce(size: str, iterations: int, gbit: float, *more: object) -> list[object]:
    """Words for harp-perf: at that rate at most, so that it lasts as long as a test needs."""
    return ["all_reduce", "-b", size, "-e", size, "-n", iterations, "-w", 0, "--rate", gbit, *more]
