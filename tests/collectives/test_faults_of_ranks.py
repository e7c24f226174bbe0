# SPDX-License-Identifier: Apache-2.0
"""A rank that dies, is absent or aborts: every other rank gets an exception in time, which names
rank, host and remedy. And ranks that cannot use HARP say so at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch_tests import PROGRAMS

from tools.hosts.lab import Lab
from tools.hosts.torch_job import TorchRank, end_well, sites, torch_job

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]

RANKS = 3
TIMEOUT_S = 3.0  # as programs/faults.py
# A busy machine may be late by seconds; a hang lasts for ever.
LATE_S = 30.0


def phases(rank: TorchRank) -> dict[str, dict[str, Any]]:
    told = [json.loads(line) for line in rank.printed if line.startswith("{")]
    return {one["phase"]: one for one in told}


def test_every_rank_gets_an_exception(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    places = sites(tmp_path, make_lab(hosts=RANKS), RANKS)
    with torch_job(places, PROGRAMS / "faults.py") as ranks:
        for number, rank in enumerate(ranks):
            status = rank.wait(250)
            assert status == (-9 if number == RANKS - 1 else 0), rank.told()
        for number, rank in enumerate(ranks[:-1]):
            seen = phases(rank)
            failed = {name: one["text"] for name, one in seen.items() if name != "success"}
            assert len(failed) == 8, rank.told()
            assert "no exception" not in failed.values(), failed
            assert all(one.get("seconds", 0) < LATE_S for one in seen.values()), seen
            assert seen["success"]["text"] == "False"
            assert seen["absent, short"]["seconds"] > TIMEOUT_S * 0.9 or "link" in str(failed)
            assert "shut down before the operation ended" in failed["shut down"], failed
            assert seen["shut down"]["seconds"] < TIMEOUT_S * 0.8, seen
            assert f"of rank {number}" in failed["killed"], failed["killed"]
            assert " on " in failed["killed"] and "restart the job" in failed["killed"]
        # The first to notice an absent rank names it; the others may see its closed links.
        texts = [phases(rank)["absent, short"]["text"] for rank in ranks[:-1]]
        assert any("has not ended within 3000 ms" in text for text in texts), texts
        assert any("init_process_group" in text for text in texts), texts
        sizes = [phases(rank)["sizes differ"]["text"] for rank in ranks]
        assert any("different sizes" in text or "larger" in text for text in sizes), sizes


def test_init_says_at_once_where_harp_cannot_run(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with torch_job(
        sites(tmp_path, lab, 2), PROGRAMS / "initialise.py", tmp_path / "empty"
    ) as ranks:
        end_well(ranks, 120)
        told = [dict(line.split(": ", 1) for line in rank.printed) for rank in ranks]
    for reasons in told:
        assert reasons["right"] == "well"
        assert "cannot run on this host" in reasons["disabled"]
        assert "NCCL" not in reasons["no file"].replace("ncclSystemError", "")
        assert "HARP_DISABLE" in reasons["disabled"]
        assert "ztcp" in reasons["no file"]
    assert "rank 1 on " in told[0]["no file"] and "cannot use HARP" in told[0]["no file"]
