# SPDX-License-Identifier: Apache-2.0
"""The life of a group of harp.torch, see programs/groups.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch_tests import PROGRAMS

from tools.hosts.lab import Lab
from tools.hosts.torch_job import end_well, sites, torch_job

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]


def test_life_of_a_group_and_a_message_of_2_gib(lab: Lab, tmp_path: Path) -> None:
    with torch_job(sites(tmp_path, lab, 2), PROGRAMS / "groups.py", tmp_path) as ranks:
        end_well(ranks, 250)
        told = [json.loads(rank.printed[-1]) for rank in ranks]
    refused = "tag 2147483648 is not between 0 and 2147483647: use a smaller one"
    right = {"made": 3, "child": 7, "short wait": True, "tag": refused, "long": True}
    assert told == [right] * 2


def test_wrong_local_rank_is_told_to_all_ranks(lab: Lab, tmp_path: Path) -> None:
    places = sites(tmp_path, lab, 2)
    places[1].environment["LOCAL_RANK"] = "first"
    with torch_job(places, PROGRAMS / "groups.py", tmp_path) as ranks:
        for rank in ranks:
            assert rank.wait(100) != 0
            assert "LOCAL_RANK=first is no rank of a host" in rank.told()
