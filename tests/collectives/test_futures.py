# SPDX-License-Identifier: Apache-2.0
"""Futures of works, also of PowerSGD's hook for DDP, see programs/futures.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch_tests import PROGRAMS

from tools.hosts.lab import Lab
from tools.hosts.torch_job import end_well, sites, torch_job


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_future_does_not_hold_up_another_one(lab: Lab, tmp_path: Path) -> None:
    with torch_job(sites(tmp_path, lab, 2), PROGRAMS / "futures.py") as ranks:
        end_well(ranks, 60)
        told, other = (json.loads(rank.printed[-1]) for rank in ranks)
    assert told == other  # also the trained parameters
    assert told["in callback"] == 4.0
    assert told["behind receive"] == 3.0
    assert told["after the end"] == 2.0
