# SPDX-License-Identifier: Apache-2.0
"""Eight NICs of which one is used cost hardly more memory and threads than one NIC."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ranks import Rank, connect

from tools.hosts.lab import Lab
from tools.hosts.rails import Rails, add_rails

NICS = 8
MOST = 1.1  # of the cost of one NIC

pytestmark = pytest.mark.skipif(
    "SANITIZER_RUNTIME" in os.environ,
    reason="a sanitizer keeps memory of its own, and freed memory",
)


@dataclass(frozen=True)
class Cost:
    """A process's memory in KiB, and its threads."""

    rss: int
    pss: int
    dirty: int  # private
    threads: int


def cost(rank: Rank) -> Cost:
    at = Path(f"/proc/{rank.process.pid}")
    sizes = {}
    for line in (at / "smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        sizes[name] = int(value.split()[0])
    threads = len(list((at / "task").iterdir()))
    return Cost(sizes["Rss"], sizes["Pss"], sizes["Private_Dirty"], threads)


@pytest.fixture(scope="module")
def rails() -> Iterator[Rails]:
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    with Lab(2, "veth-1500") as lab:
        yield add_rails(lab, NICS)


def costs(rails: Rails, folder: Path, nics: int, used: int = 1) -> dict[str, list[Cost]]:
    """The costs of two ranks after init, and after a transfer over the first NICs."""
    sites = [rails.site(folder / f"{nics}-{h.index}", h, range(nics)) for h in rails.lab.hosts]
    with Rank(sites[0]) as sender, Rank(sites[1]) as receiver:
        ranks = [rank.init(nics) for rank in (sender, receiver)]
        found = {"init": [cost(rank) for rank in ranks]}
        for nic in range(used):
            link = connect(sender, receiver, devices=(nic, nic))
            link.move(count=256, size=1 << 20, ms=60000)
        found["transfer"] = [cost(rank) for rank in ranks]
    return found


def test_unused_nics_cost_little(rails: Rails, tmp_path: Path) -> None:
    one, many = (costs(rails, tmp_path, nics) for nics in (1, NICS))
    for when in one:
        for side, (few, all_nics) in enumerate(zip(one[when], many[when])):
            said = f"rank {side} after {when}: one NIC {few}, {NICS} NICs {all_nics}"
            print(said)
            assert all_nics.threads == few.threads, said
            assert all_nics.rss <= MOST * few.rss, said
            assert all_nics.pss <= MOST * few.pss, said
            assert all_nics.dirty <= MOST * few.dirty, said


def test_each_used_nic_costs_thread_and_memory(rails: Rails, tmp_path: Path) -> None:
    """So the test above would notice NICs that start without use."""
    seen = costs(rails, tmp_path, NICS, used=2)
    for before, after in zip(seen["init"], seen["transfer"]):
        print(before, after)
        assert after.threads == before.threads + 1
        assert after.dirty > MOST * before.dirty
