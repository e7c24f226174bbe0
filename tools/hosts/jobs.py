# SPDX-License-Identifier: Apache-2.0
"""Jobs of harp-perf, with faults on their paths while their bytes flow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from harp.observe.statfile import Flow
from tools.hosts.ports import random_port
from tools.hosts.ranks import START_S, Perf, Site, TooLate, wait_until


@dataclass
class Joint:
    """Two sites that reach each other. The fault port of each NIC of the first one reads its faults
    from a file; `control` is that of NIC 0. `host` is the address of the first one for the other
    ranks. `more_controls` are those of its other NICs. `addresses` has those of each site's NICs,
    if it has several.
    """

    sites: list[Site]
    host: str
    control: Path
    more_controls: Sequence[Path] = ()
    addresses: Sequence[Sequence[str]] = ()

    def impair(self, spec: str = "", all_nics: bool = False) -> None:
        """Sets the faults of NIC 0, or of all NICs, from now on (within 10 ms). An empty text ends
        them."""
        for control in (self.control, *(self.more_controls if all_nics else ())):
            fresh = control.with_suffix(".new")
            fresh.write_text(spec)
            os.replace(fresh, control)  # a reader sees the old text or the new one

    def addresses_of(self, number: int) -> Sequence[str]:
        """The addresses of a site's NICs, that of NIC 0 first."""
        return self.addresses[number] if self.addresses else [self.sites[number].address]

    def blackhole(self, flow: Flow, side: str) -> None:
        """Drops all packets of a connection from now on; side: tx, rx or both, seen from the first
        site."""
        self.impair(f"blackhole=1,port={flow.local.rpartition(':')[2]},side={side}")


@dataclass
class Job:
    """The ranks of a running job. `seen` has the latest known counters of each site."""

    sites: Sequence[Site]
    ranks: list[Perf]
    seen: list[dict[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen = [{} for _ in self.sites]

    def look(self) -> list[dict[str, int]]:
        """The counters of each site; of an ended process, the latest known ones."""
        for number, site in enumerate(self.sites):
            for process in site.published():
                self.seen[number] = process.totals
        return self.seen

    def count(self, number: int, name: str) -> int:
        return self.look()[number].get(name, 0)

    def await_count(self, number: int, name: str, least: int, timeout: float = START_S) -> float:
        """Waits until a site's counter is at least `least`. Returns the seconds that it took."""
        began = time.monotonic()
        wait_until(
            lambda: self.count(number, name) >= least,
            timeout,
            f"{name} of site {number} stays below {least}",
            self.ranks,
        )
        return time.monotonic() - began

    def await_messages(self, least: int) -> None:
        """Waits until each site has received `least` messages."""
        for number in range(len(self.sites)):
            self.await_count(number, "messages_in", least, START_S)

    def sending(self, number: int, address: str = "") -> dict[int, Flow]:
        """The connections on which a site sends, by flow number; only those from this address, if
        one is given."""
        flows = [flow for process in self.sites[number].published() for flow in process.flows]
        return {
            flow.flow: flow
            for flow in flows
            if flow.direction == "S" and (not address or flow.local.startswith(f"{address}:"))
        }

    def grows(self, number: int, site: int = 0, address: str = "") -> Flow:
        """The flow with this number on which a site sends, and from this address, if one is given.
        Waits until it carries data."""
        seen: dict[str, Flow] = {}

        def moved() -> Optional[Flow]:
            flow = self.sending(site, address).get(number)
            if not flow:
                return None
            before = seen.setdefault(flow.local, flow)
            return flow if flow.bytes_out > before.bytes_out + 100_000 else None

        why = f"flow {number} of site {site} carries nothing"
        found: Flow = wait_until(moved, START_S, why, self.ranks)
        return found

    def finish(self, timeout: float = 100) -> list[int]:
        """Waits for the end of the ranks and keeps their counters. Returns the exit statuses.
        Raises TooLate after `timeout` seconds."""
        limit = time.monotonic() + timeout
        while any(rank.process.poll() is None for rank in self.ranks):
            self.look()
            if time.monotonic() > limit:
                raise TooLate(f"not done in {timeout} s: {[rank.lines() for rank in self.ranks]}")
            time.sleep(0.005)
        return [rank.wait() for rank in self.ranks]

    def ends_well(self) -> None:
        """Checks that every rank exits with 0 and without a warning, and that every byte is
        right."""
        assert self.finish() == [0] * len(self.ranks), [rank.lines() for rank in self.ranks]
        assert [rank.warnings for rank in self.ranks] == [[]] * len(self.ranks)
        wrong = self.ranks[0].wrong()
        assert wrong and not any(wrong), wrong


@contextmanager
def job(
    sites: Sequence[Site], host: str, args: Sequence[object], flowing: int = 8
) -> Iterator[Job]:
    """Runs harp-perf with one rank at each site. Enters the block once each rank has received
    `flowing` messages."""
    rendezvous = f"{host}:{random_port()}"
    with ExitStack() as stack:
        made = Job(
            sites,
            [
                stack.enter_context(
                    Perf(site, list(map(str, args)), number, rendezvous, len(sites))
                )
                for number, site in enumerate(sites)
            ],
        )
        if flowing:
            made.await_messages(flowing)
        yield made


def all_reduce(size: str, iterations: int, gbit: float, *more: object) -> list[object]:
    """The arguments of harp-perf. `gbit` limits the rate, so that the job lasts long enough."""
    return ["all_reduce", "-b", size, "-e", size, "-n", iterations, "-w", 0, "--rate", gbit, *more]
