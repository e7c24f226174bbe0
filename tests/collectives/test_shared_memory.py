# SPDX-License-Identifier: Apache-2.0
"""Ranks of a host that share memory, see programs/windows.py."""

from __future__ import annotations

from typing import Any

import pytest
from torch_tests import run_over_loopback


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    scenes: dict[str, Any] = run_over_loopback("windows.py")
    return scenes


COLLECTIVES = ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all",
               "gather", "scatter", "barrier"]  # fmt: skip


ACROSS = ["broadcast", "all_gather", "reduce_scatter"]  # two-dimensional, beside the first two


def check(ranks: list[dict[str, Any]], shares: int) -> None:
    assert [rank["shares"] for rank in ranks] == [shares] * len(ranks)
    assert [rank["wrong"] for rank in ranks] == [[]] * len(ranks)


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.parametrize("scene", ["2", "3", "8", "2+2", "2+2+2"])
def test_ranks_that_share_memory_get_equal_results(told: dict[str, Any], scene: str) -> None:
    check(told[scene], 1)
    assert len({rank["bits"] for rank in told[scene]}) == 1


@pytest.mark.parametrize("scene", ["all of 2", "all of 3", "all of 2+2"])
def test_every_collective_gives_the_right_elements(told: dict[str, Any], scene: str) -> None:
    check(told[scene], 1)


def test_groups_have_windows_of_their_own(told: dict[str, Any]) -> None:
    check(told["two groups"], 1)


@pytest.mark.parametrize("scene", ["3+1", "off", "blind"])
def test_ranks_without_shared_memory_use_links(told: dict[str, Any], scene: str) -> None:
    check(told[scene], 0)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_killed_rank_is_named_with_its_host(told: dict[str, Any], kind: str) -> None:
    first, second, killed = told["killed"][kind]
    assert killed is None
    for number, rank in enumerate((first, second)):
        assert rank["shares"] == 1
        assert f"{kind} of rank {number}: rank 2 on host2 has " in rank["text"], rank
        assert "restart the job" in rank["text"]


@pytest.mark.parametrize("kind", ACROSS)
def test_killed_rank_of_several_hosts_is_named(told: dict[str, Any], kind: str) -> None:
    *others, killed = told["killed across hosts"][kind]
    texts = [rank["text"] for rank in others]
    assert killed is None
    assert all(f"{kind} of rank {number}" in text for number, text in enumerate(texts)), texts
    # The first rank to fail names it. The others may name one that has failed because of it.
    assert any("rank 3 on host3" in text for text in texts), texts


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_rank_that_aborts_is_named_with_its_host(told: dict[str, Any], kind: str) -> None:
    aborting, *others = told["aborted"][kind]
    assert aborting["text"] == "rank 0 gave up"
    for rank in others:
        assert "rank 0 on host0 has failed or left the group" in rank["text"], rank


def test_another_operation_of_a_rank_is_told(told: dict[str, Any]) -> None:
    texts = [rank["text"] for rank in told["other kind"]]
    assert any(
        "all_gather of rank 0 meets all_to_all of rank 2 on host2" in text
        or "all_gather of rank 1 meets all_to_all of rank 2 on host2" in text
        or "all_to_all of rank 2 meets all_gather of rank " in text
        for text in texts
    ), texts
    assert all("no failure" not in text for text in texts), texts


@pytest.mark.parametrize("kind", COLLECTIVES[:-1])
def test_another_size_of_a_rank_is_told(told: dict[str, Any], kind: str) -> None:
    texts = [rank["text"] for rank in told["other size"][kind]]
    assert any("bytes of rank " in text and "different sizes" in text for text in texts), texts


@pytest.mark.parametrize("kind", ACROSS)
def test_another_size_on_several_hosts_is_told(told: dict[str, Any], kind: str) -> None:
    texts = [rank["text"] for rank in told["other size across hosts"][kind]]
    # The plugin may be first to notice, and then ends the links of the others.
    ours, plugins = "with tensors of different sizes", "sizes or NCCL_ settings differ"
    assert any(ours in text or plugins in text for text in texts), texts


def test_exchanged_sizes_are_told(told: dict[str, Any]) -> None:
    texts = [rank["text"] for rank in told["exchanged sizes"]]
    assert any("has other sizes for the ranks than that of rank" in text for text in texts), texts


def test_absent_rank_is_named_at_the_timeout(told: dict[str, Any]) -> None:
    texts = [rank["text"] for rank in told["absent"][:-1]]
    assert any("has not ended within 1500 ms: it waits for rank 2 on host2" in one for one in texts)
    assert all("rank 2 on host2" in one for one in texts), texts


def test_late_rank_does_not_blame_itself(told: dict[str, Any]) -> None:
    text = told["absent"][-1]["text"]
    assert "all_reduce of rank 2: another rank of this host has given up on this one" in text
