# SPDX-License-Identifier: Apache-2.0
"""Ranks of a host that share memory, see programs/windows.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from torch_tests import PROGRAMS

from harp import paths


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    libraries = [str(paths.collectives_library()), str(paths.kernel_plugin_path())]
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "windows.py"), *libraries],
        env={**os.environ, "NCCL_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    scenes: dict[str, Any] = json.loads(done.stdout)
    return scenes


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.parametrize("scene", ["2", "3", "8", "2+2", "2+2+2"])
def test_ranks_that_share_memory_get_equal_results(told: dict[str, Any], scene: str) -> None:
    ranks = told[scene]
    assert [rank["shares"] for rank in ranks] == [1] * len(ranks)
    assert [rank["wrong"] for rank in ranks] == [[]] * len(ranks)
    assert len({rank["bits"] for rank in ranks}) == 1


@pytest.mark.parametrize("scene", ["3+1", "off", "blind"])
def test_ranks_without_shared_memory_use_links(told: dict[str, Any], scene: str) -> None:
    ranks = told[scene]
    assert [rank["shares"] for rank in ranks] == [0] * len(ranks)
    assert [rank["wrong"] for rank in ranks] == [[]] * len(ranks)


def test_killed_rank_is_named_with_its_host(told: dict[str, Any]) -> None:
    first, second, killed = told["killed"]
    assert killed is None
    for number, rank in enumerate((first, second)):
        assert rank["shares"] == 1
        assert f"all_reduce of rank {number}: rank 2 on host2 has " in rank["text"], rank
        assert "restart the job" in rank["text"]


def test_rank_that_aborts_is_named_with_its_host(told: dict[str, Any]) -> None:
    aborting, *others = told["aborted"]
    assert aborting["text"] == "rank 0 gave up"
    for rank in others:
        assert "rank 0 on host0 has failed or left the group" in rank["text"], rank


def test_absent_rank_is_named_at_the_timeout(told: dict[str, Any]) -> None:
    texts = [rank["text"] for rank in told["absent"][:-1]]
    assert any("has not ended within 1500 ms: it waits for rank 2 on host2" in one for one in texts)
    assert all("rank 2 on host2" in one for one in texts), texts


def test_late_rank_does_not_blame_itself(told: dict[str, Any]) -> None:
    text = told["absent"][-1]["text"]
    assert "all_reduce of rank 2: another rank of this host has given up on this one" in text
