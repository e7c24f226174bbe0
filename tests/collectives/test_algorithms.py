# SPDX-License-Identifier: Apache-2.0
"""The algorithms of all_reduce by links, and the choice among them, see programs/algorithms.py and
programs/measured.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch_tests import PROGRAMS, run_over_loopback

from tools.hosts.lab import Lab
from tools.hosts.torch_job import sites, torch_job


@pytest.fixture(scope="module")
def told() -> dict[str, list[dict[str, Any]]]:
    ranks: dict[str, list[dict[str, Any]]] = run_over_loopback("algorithms.py")
    return ranks


# Classes of sizes of plain and of wide accumulators that can use an algorithm.
ALL, ALL_BUT_LAST, UP_TO_1_MIB, NONE = [*range(1, 8)], [*range(1, 7)], [*range(1, 6)], list[int]()
POSSIBLE = {
    "doubling": {"2": (UP_TO_1_MIB, UP_TO_1_MIB), "3": (UP_TO_1_MIB, UP_TO_1_MIB),
                 "4": (UP_TO_1_MIB, UP_TO_1_MIB)},
    "pairwise": {"2": (ALL, ALL), "3": (ALL, ALL), "4": (ALL, ALL)},
    "halving": {"2": (NONE, NONE), "3": (NONE, NONE), "4": (ALL_BUT_LAST, NONE)},
    "ring": {"2": (NONE, NONE), "3": (ALL, NONE), "4": (ALL, NONE)},
}  # fmt: skip


@pytest.mark.sanitized
@pytest.mark.parametrize("ranks", ["2", "3", "4"])
@pytest.mark.parametrize("algorithm", list(POSSIBLE))
def test_algorithm_gives_right_sums(
    told: dict[str, list[dict[str, Any]]], algorithm: str, ranks: str
) -> None:
    plain, wide = POSSIBLE[algorithm][ranks]
    expected = {"plain": plain, "wide": wide, "wrong": []}
    assert [rank[algorithm] for rank in told[ranks]] == [expected] * int(ranks)


def test_unknown_algorithm_is_refused(told: dict[str, list[dict[str, Any]]]) -> None:
    assert [rank["unknown"] for rank in told["4"]] == [[]] * 4


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "value, error",
    [
        ("fixed", "HARP_ALL_REDUCE differs between rank 0 on "),
        ("Measured", "HARP_ALL_REDUCE=Measured is neither fixed nor measured"),
        ("", "restart the job"),  # rank 3 fails while it measures
    ],
)
def test_all_ranks_choose_what_they_measure(
    make_lab: Callable[..., Lab], tmp_path: Path, value: str, error: str
) -> None:
    places = sites(tmp_path, make_lab(hosts=4), 4)
    for place in places:
        place.environment["HARP_ALL_REDUCE"] = "measured"
    with torch_job(places, PROGRAMS / "measured.py", value) as ranks:
        for rank in ranks:
            assert rank.wait(250) == 0, rank.told()
        results = [json.loads(rank.printed[-1]) for rank in ranks]
    first = results[0]["lines"]
    assert len(first) == 12 and "all_reduce of float32, sums of 64 KiB: " in first[0]
    assert all("ring" in line for line in first[:7]) and "ring" not in "".join(first[7:])
    for one in results:
        assert one["lines"] == first and one["right"], one
        assert error in one["error"] or one["error"] == "MemoryError()", one
        assert one["seconds"] < 20, one
    for one in (results[0], results[2]):
        assert one["pair"] == results[0]["pair"] and len(one["pair"]) == 10
