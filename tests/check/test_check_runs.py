# SPDX-License-Identifier: Apache-2.0
"""`harp check` without faults, with missing ranks, and as launchers start it."""

from __future__ import annotations

import os
import re
import time
from html.parser import HTMLParser

import pytest
from crowd import Crowd

CLEAN = 50 if os.environ.get("HARP_TEST_FULL") else 3


def rendezvous(crowd: Crowd) -> str:
    return f"{crowd.lab.hosts[0].address}:29555"


@pytest.mark.slow
@pytest.mark.parametrize("run", range(CLEAN))
def test_clean_hosts_have_no_fault(crowd: Crowd, run: int) -> None:
    before = set(crowd.folder.glob("run*/*.trace"))
    result = crowd.run(rendezvous=rendezvous(crowd))
    assert result.texts() == [], result.text
    assert set(result.codes) == {0}
    assert set(crowd.folder.glob("run*/*.trace")) == before, "a link has failed"
    assert not list(crowd.folder.glob("run*/*.stat"))
    report = result.report
    assert [one["ranks"] for one in report["hosts"]] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert result.unmeasured() == []
    assert "What would NCCL get: at most 10 Gbit/s into each host" in result.text
    assert "all at once" in result.said[0] and not result.said[1]


class Links(HTMLParser):
    """Collects what a page would load, and the text of its cells."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.coloured = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if tag in ("script", "img", "link", "iframe") or "src" in names or "href" in names:
            self.loaded.append(tag)
        self.coloured += tag == "td" and "hsl(" in (names.get("style") or "")


LAUNCHERS = {
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "torchrun": ("RANK", "WORLD_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE"),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS"),
}


@pytest.mark.slow
def test_missing_rank_is_named_in_time(crowd: Crowd) -> None:
    """The ranks that come learn what their launcher told them; one never comes."""
    names = LAUNCHERS["Slurm"]
    crowd.args = ("--wait", "5", "--quick")
    begun = time.monotonic()
    result = crowd.run(
        absent=[5],
        rendezvous=rendezvous(crowd),
        launcher=lambda rank, ranks: {names[0]: str(rank), names[1]: str(ranks)},
    )
    assert time.monotonic() - begun < 60
    faults = result.faults_about("ranks")
    assert len(faults) == 1 and "rank 5 of 8 did not come within 5 s" in faults[0]
    assert rendezvous(crowd) in faults[0]
    assert {code for rank, code in enumerate(result.codes) if rank != 5} == {1}


@pytest.mark.slow
def test_missing_rank_0_is_named_in_time(crowd: Crowd) -> None:
    crowd.args = ("--wait", "3")
    result = crowd.run(absent=[0], rendezvous=rendezvous(crowd))
    assert set(result.codes[1:]) == {1}
    for said in result.said[1:]:
        assert "rank 0 did not answer at 10.77.0.1:29555: it was reset" in said
        assert re.search(r"rank \d: ", said)


def test_page_loads_nothing_and_has_heat_map() -> None:
    from harp.check import html

    cells = [[None, 4.0], [0.4, None]]
    report = {
        "good": False, "ranks": 2, "seconds": 3.0, "expected": ["at most 10 Gbit/s"],
        "hosts": [{"name": "<b>", "ranks": [0]}, {"name": "gpu2", "ranks": [1]}],
        "findings": [{"level": "fault", "about": "slow link", "text": "from <b> to gpu2"}],
        "alone_gbit": cells, "together_gbit": cells, "round_trip_us": cells,
    }  # fmt: skip
    page = html.page(report)
    found = Links()
    found.feed(page)
    assert found.loaded == [] and found.coloured == 6
    assert "<b>" not in page and "from &lt;b&gt; to gpu2" in page
    assert "url(" not in page and "@import" not in page
