# SPDX-License-Identifier: Apache-2.0
"""harp.light reduces over harp as over Gloo, see programs/light.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_tests import PROGRAMS

from tools.hosts.lab import Lab
from tools.hosts.torch_job import end_well, sites, torch_job


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_light_gives_the_same_averages_as_over_gloo(lab: Lab, tmp_path: Path) -> None:
    with torch_job(sites(tmp_path, lab, 4), PROGRAMS / "light.py") as ranks:
        end_well(ranks, 250)
        assert [rank.printed[-1] for rank in ranks] == [
            f"rank {number}: different: []" for number in range(4)
        ]
