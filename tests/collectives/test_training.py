# SPDX-License-Identifier: Apache-2.0
"""DDP and FSDP train over harp.torch as over Gloo, see programs/training.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_tests import PROGRAMS

from tools.hosts.lab import Lab
from tools.hosts.torch_job import end_well, sites, torch_job


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_training_gives_the_same_parameters(lab: Lab, tmp_path: Path) -> None:
    with torch_job(sites(tmp_path, lab, 2), PROGRAMS / "training.py") as ranks:
        end_well(ranks, 250)
        assert [rank.printed[-1] for rank in ranks] == [
            f"rank {number}: different: []" for number in range(2)
        ]
