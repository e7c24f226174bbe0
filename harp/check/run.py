# SPDX-License-Identifier: Apache-2.0
"""The phases of a check. All ranks run them together, and rank 0 decides and reports.

Rank 0 keeps what the other ranks say in an Outcome. Each phase ends with a step of the rendezvous,
so the ranks begin the next one at the same time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Optional

from harp.check import addresses, agree, broken, frames, measure, reach, slow, tournament
from harp.check import facts as facts_of
from harp.check import hosts as hosts_of
from harp.check.hosts import Host
from harp.check.links import AWAITED, Mesh
from harp.check.netplugin import Plugin, PluginError
from harp.check.pace import Pace
from harp.check.progress import Progress
from harp.check.rendezvous import STEP_S, Rendezvous
from harp.cli.findings import Finding

FACTS_S = 60.0  # for doctor on the slowest host
PROBE_S = 20.0
DRAIN_S = 10.0  # for the receives that are outstanding at the end
INIT_S = 45.0
CONNECT_S, RANK_S = 6.0, 0.1  # for links to open, and more for each rank of the job
SLOT_S = 3 * measure.TIMEOUT_S  # for the slowest pair of a slot
ALONE_S, TOGETHER_S = 20.0, 8.0  # for all slots of these phases
FRAME_ROUNDS = 3
HOPELESS = 3  # stalled links of a rank: it is measured no more, because each takes seconds

Rates = dict[tuple[int, int], float]


@dataclass
class Outcome:
    """What rank 0 has learnt. Rates are from a rank to a rank, Gbit/s; round trips in µs."""

    ranks: int
    hosts: list[Host] = field(default_factory=list)
    host_of: list[int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    releases: list[str] = field(default_factory=list)
    alone: Rates = field(default_factory=dict)
    together: Rates = field(default_factory=dict)
    # Rates of good pairs, measured in the same round as suspects; emptied after each round.
    reference_rates: Rates = field(default_factory=dict)
    all_reference_rates: list[float] = field(default_factory=list)  # those of all rounds
    trips_us: Rates = field(default_factory=dict)
    broken: dict[tuple[int, int], str] = field(default_factory=dict)
    seconds: float = 0.0


def _device(host: Host, rank: int) -> int:
    """The device of a rank: the ranks of a host take its devices in turn."""
    return host.ranks.index(rank) % max(1, len(host.facts["devices"]))


class Check:
    """One rank's part. `outcome` is complete on rank 0 only."""

    def __init__(
        self, rendezvous: Rendezvous, plugin: Optional[Path], quick: bool, progress: Progress
    ) -> None:
        """plugin: the one to test; None: the one that NCCL would load. quick: measure nothing."""
        self._rendezvous, self._progress, self._quick = rendezvous, progress, quick
        self._named = plugin
        self._rank = rendezvous.place.rank
        self.outcome = Outcome(rendezvous.place.ranks)
        self._mesh: Optional[Mesh] = None
        self._plan: dict[str, Any] = {}  # rank 0's reply to the facts: hosts, their facts, a token
        self._hosts: list[Host] = []
        self._begun = time.monotonic()

    def run(self) -> bool:
        """Runs all phases. Returns whether there is no fault, the same on all ranks. Raises
        RendezvousError if rank 0 is lost."""
        self._facts()
        self._network()
        self._links()
        if not self._rendezvous.step(self._quick, any):  # all ranks measure, or none
            self._measure()
        if self._mesh:
            self._mesh.drain(DRAIN_S)
        self._rendezvous.step("", lambda _: "")  # no rank closes before all have drained
        self.close()
        return bool(self._rendezvous.step("", self._decide_end))

    @property
    def speaks(self) -> bool:
        """Whether this rank is the one that speaks for its host."""
        return self._mine() is not None

    def close(self) -> None:
        """Closes the links. Call it before the program ends, also after an exception: the plugin
        writes to the memory of receives until then. May be called again."""
        if self._mesh:
            self._mesh.close()

    # -- facts

    def _facts(self) -> None:
        self._progress.say("looking at each host")
        nonce = self._rendezvous.step("", lambda _: secrets.token_hex(32))
        self._plan = self._rendezvous.step(facts_of.gather(nonce), self._decide_facts, FACTS_S)
        self._hosts = [
            Host(number, one["name"], tuple(one["ranks"]), one["facts"])
            for number, one in enumerate(self._plan["hosts"])
        ]

    def _decide_facts(self, said: list[Any]) -> Any:
        out = self.outcome
        out.hosts = hosts_of.group(said)
        out.host_of = hosts_of.of_ranks(out.hosts, out.ranks)
        out.findings += agree.compare(out.hosts, said)
        out.findings += addresses.duplicates(out.hosts)
        keep = ("nics", "may_open_sockets", "devices", "host", "gpus")
        listed = [
            {
                "name": one.name,
                "ranks": one.ranks,
                "facts": {name: one.facts[name] for name in keep},
            }
            for one in out.hosts
        ]
        return {"hosts": listed, "host_of": out.host_of, "token": secrets.token_hex(16)}

    # -- the network, by the kernels

    def _mine(self) -> Optional[Host]:
        """This host, if this rank speaks for it."""
        return next((one for one in self._hosts if one.ranks[0] == self._rank), None)

    def _by_host(self, said: Sequence[Any]) -> list[Any]:
        return [said[one.ranks[0]] for one in self._hosts]

    def _network(self) -> None:
        self._progress.say("probing the network", f"{len(self._hosts)} hosts")
        mine = self._mine()
        token = bytes.fromhex(self._plan["token"])
        listeners = [
            reach.Listener(nic["address"] if nic["shared"] else "") if nic["address"] else None
            for nic in (mine.nics if mine else [])
        ]
        ports = self._rendezvous.step(
            [one.port if one else 0 for one in listeners], self._by_host, PROBE_S
        )
        try:
            self._reach(mine, ports, token)
            self._frames(mine, ports, token)
        finally:
            for one in listeners:
                if one:
                    one.close()

    def _reach(self, mine: Optional[Host], ports: Sequence[Any], token: bytes) -> None:
        tries = reach.tries_of(mine, self._hosts, ports) if mine else []
        self._rendezvous.step(reach.probe(tries, token), self._decide_reach, PROBE_S)

    def _decide_reach(self, said: list[Any]) -> None:
        found: dict[tuple[int, int], str] = {}
        for one in self._hosts:
            for target, end in said[one.ranks[0]] or ():
                if found.get((one.number, target), reach.ANSWERED) == reach.ANSWERED:
                    found[one.number, target] = end
        self.outcome.findings += reach.judge(self._hosts, self._certain(found))

    def _frames(self, mine: Optional[Host], ports: Sequence[Any], token: bytes) -> None:
        prober = frames.Prober(mine, self._hosts, ports, token) if mine else None
        try:
            for last in (False,) * (FRAME_ROUNDS - 1) + (True,):
                self._rendezvous.step("", lambda _: "")  # all listen now
                heard: list[Any] = []
                if prober:
                    prober.send()
                    prober.listen()
                    wanted = prober.expected()
                    heard = [(*one, prober.heard.get(one, 0), wanted[one]) for one in wanted]
                again = self._rendezvous.step(
                    heard, partial(self._decide_frames, last=last), PROBE_S
                )
                if not again:
                    return
        finally:
            if prober:
                prober.close()

    def _decide_frames(self, said: list[Any], last: bool) -> bool:
        """Whether to send again, because something is missing."""
        heard: dict[tuple[int, int], dict[int, int]] = {}
        missing = False
        for one in self._hosts:
            for source, number, size, wanted in said[one.ranks[0]] or ():
                heard.setdefault((source, one.number), {})[number] = size
                missing = missing or size < wanted
        if missing and not last:
            return True
        self.outcome.findings += frames.judge(self._hosts, self._certain(heard))
        return False

    # -- links, by the plugin

    def _links(self) -> None:
        self._progress.say("opening links", f"{self._rendezvous.place.ranks} ranks")
        handles = self._rendezvous.step(self._open_plugin(), self._decide_handles, INIT_S)
        mine = handles[str(self._rank)] if str(self._rank) in handles else {}
        if self._mesh:
            wanted = {int(peer): bytes.fromhex(text) for peer, text in mine.items()}
            self._mesh.connect(wanted, CONNECT_S + RANK_S * self._rendezvous.place.ranks)
        failed = self._mesh.failures() if self._mesh else {}
        self._rendezvous.step(list(failed.items()), self._decide_links, PROBE_S + STEP_S)

    def _open_plugin(self) -> Any:
        """What this rank tells of its plugin: the handles for its peers, or why it has none."""
        peers = [
            rank
            for rank, host in enumerate(self._plan["host_of"])
            if host >= 0 and rank != self._rank
        ]
        try:
            plugin = Plugin(facts_of.plugin_path(self._named))
            count = plugin.init()
            here = next(one for one in self._hosts if self._rank in one.ranks)
            mesh = Mesh(plugin, _device(here, self._rank) % count)
            handles = mesh.listen(peers)
        except (PluginError, FileNotFoundError) as failure:
            return {"declined": str(failure)}
        self._mesh = mesh
        return {
            "declined": "",
            "release": plugin.release,
            "handles": {str(peer): handle.rstrip(b"\0").hex() for peer, handle in handles.items()},
        }

    def _decide_handles(self, said: list[Any]) -> Any:
        out = self.outcome
        out.findings += agree.declined(out.hosts, [one and one["declined"] for one in said])
        versions: list[Optional[list[int]]] = [None] * out.ranks
        to: dict[str, dict[str, str]] = {}
        for rank, one in enumerate(said):
            out.releases.append((one or {}).get("release", ""))
            for peer, handle in ((one or {}).get("handles") or {}).items():
                versions[rank] = list(bytes.fromhex(handle)[2:4])
                if said[int(peer)] and not said[int(peer)]["declined"]:
                    to.setdefault(peer, {})[str(rank)] = handle
        out.findings += agree.wire(out.hosts, versions)
        return to

    def _decide_links(self, said: list[Any]) -> None:
        out = self.outcome
        awaited: dict[tuple[int, int], str] = {}
        for rank, failed in enumerate(said):
            for peer, why in failed or ():
                if why.startswith(AWAITED):
                    awaited[int(peer), rank] = why
                else:
                    out.broken[rank, int(peer)] = why
        for link, why in awaited.items():  # the peer knows better why it did not connect
            out.broken.setdefault(link, why)
        self._judge_broken("")

    def _judge_broken(self, beginning: str) -> None:
        """Names the hosts whose links are broken. beginning: of the reason; "": any reason."""
        out = self.outcome
        by_host: dict[tuple[int, int], str] = {}
        for (source, target), why in out.broken.items():
            if why.startswith(beginning):
                by_host.setdefault((out.host_of[source], out.host_of[target]), why)
        out.findings += broken.links(out.hosts, self._certain(by_host))

    def _certain(self, links: dict[tuple[int, int], Any]) -> dict[tuple[int, int], Any]:
        """The links between hosts with addresses of their own: of others, nothing can be said."""
        doubtful = addresses.doubtful(self.outcome.hosts)
        return {link: said for link, said in links.items() if not doubtful & set(link)}

    # -- measuring

    def _measure(self) -> None:
        out = self.outcome
        ranks = self._rendezvous.step(self._mesh is not None, self._willing)
        alone = tournament.one_by_one(ranks, self._plan["host_of"])
        together = tournament.rounds(ranks)
        self._phase("one pair at a time", alone, ALONE_S, out.alone)
        self._measure_suspects()
        self._phase("all at once", together, TOGETHER_S, out.together)

    def _places(self) -> list[slow.Place]:
        """Where each rank is."""
        places = [slow.Place(host, 0) for host in self.outcome.host_of]
        for host in self.outcome.hosts:
            for rank in host.ranks:
                places[rank] = slow.Place(host.number, _device(host, rank))
        return places

    def _measure_suspects(self) -> None:
        """Measures slow pairs again, in turns with good ones."""
        out = self.outcome
        begun = time.monotonic()
        for number in range(slow.AGAIN):
            both = self._rendezvous.step("", lambda _: self._suspects(begun))
            if not both["suspects"]:
                return
            for name, into in (("suspects", out.alone), ("references", out.reference_rates)):
                pairs = [(a, b) for a, b in both[name]]
                slots = tournament.again(pairs, self._plan["host_of"])
                self._phase(f"suspects again ({number + 1})", slots, slow.ROUND_S, into)
            self._rendezvous.step("", self._take_references)

    def _suspects(self, begun: float) -> dict[str, list[tuple[int, int]]]:
        out = self.outcome
        places = self._places()
        found = slow.suspects(out.alone, places, out.all_reference_rates)
        if time.monotonic() - begun > slow.AGAIN_S:
            found = []
        return {
            "suspects": found,
            "references": slow.references(out.alone, places, len(found)),
        }

    def _take_references(self, _: list[Any]) -> None:
        self.outcome.all_reference_rates += self.outcome.reference_rates.values()
        self.outcome.reference_rates.clear()

    def _willing(self, said: list[Any]) -> list[int]:
        return [rank for rank, has in enumerate(said) if has]

    def _phase(
        self, name: str, slots: Sequence[Sequence[tuple[int, int]]], total: float, rates: Rates
    ) -> None:
        """Measures the pairs of each slot at the same time, and the slots one after the other.
        total: the seconds for all slots."""
        seen: list[tuple[int, float, float]] = []
        mesh, pace = self._mesh, Pace(total, len(slots))
        for number, slot in enumerate(slots):
            self._progress.say(f"measuring {name}", f"{number + 1} of {len(slots)}")
            failed = list(mesh.failures().items()) if mesh else []
            now = self._rendezvous.step(failed, partial(self._slot, pace=pace), SLOT_S)
            for a, b in slot:
                if mesh and self._rank in (a, b) and [a, b] not in now["unusable"]:
                    seen += self._pair(mesh, b if self._rank == a else a, now["seconds"])
        failed = list(mesh.failures().items()) if mesh else []
        self._rendezvous.step([seen, failed], lambda said: self._keep(said, rates), SLOT_S)

    def _pair(self, mesh: Mesh, peer: int, seconds: float) -> list[tuple[int, float, float]]:
        link = mesh.links[peer]
        if link.failure:
            return []
        try:
            found = measure.pair(link, self._rank < peer, seconds)
        except PluginError as failure:
            link.failure = str(failure)
            return []
        return [(peer, found.rtt_us, found.gbit)]

    def _slot(self, said: list[Any], pace: Pace) -> dict[str, Any]:
        return {"unusable": self._unusable(said), "seconds": pace.next()}

    def _unusable(self, said: list[Any]) -> list[tuple[int, int]]:
        """The pairs that cannot be measured, lower rank first: one of them is lost, or a link is
        broken."""
        pairs = set()
        stalls = [0] * len(said)
        for rank, failed in enumerate(said):
            for peer, why in failed or ():
                pairs.add((min(rank, int(peer)), max(rank, int(peer))))
                stalls[rank] += why.startswith(measure.STALLED)
        hopeless = {rank for rank, count in enumerate(stalls) if count >= HOPELESS}
        for rank in hopeless | set(self._rendezvous.lost):
            pairs |= {(min(rank, one), max(rank, one)) for one in range(len(said)) if one != rank}
        return sorted(pairs)

    def _keep(self, said: list[Any], rates: Rates) -> None:
        out = self.outcome
        for rank, one in enumerate(said):
            for peer, rtt_us, gbit in one[0] if one else ():
                rates[rank, peer] = max(gbit, rates.get((rank, peer), 0.0))
                if rtt_us >= 0:
                    best = min(rtt_us, out.trips_us.get((rank, peer), rtt_us))
                    out.trips_us[rank, peer] = best
            for peer, why in one[1] if one else ():
                out.broken.setdefault((rank, int(peer)), why)

    def _decide_end(self, _: list[Any]) -> bool:
        out = self.outcome
        self._judge_broken(measure.STALLED)
        out.findings += slow.judge(out.hosts, out.alone, self._places(), out.all_reference_rates)
        out.findings += slow.far(out.hosts, out.trips_us, self._places())
        place = self._rendezvous.place
        lost = self._rendezvous.lost
        out.findings += broken.missing(
            lost, place.ranks, self._rendezvous.where, out.host_of, out.hosts
        )
        out.seconds = time.monotonic() - self._begun
        return not any(one.level == "fault" for one in out.findings)
