# SPDX-License-Identifier: Apache-2.0
"""Groups such as "cpu:harp,cuda:nccl": each tensor goes to its device's backend, see
programs/mixed.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_tests import PROGRAMS

from tools.hosts.lab import Lab
from tools.hosts.torch_job import end_well, sites, torch_job


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tensors_go_to_the_backend_of_their_device(lab: Lab, tmp_path: Path) -> None:
    with torch_job(sites(tmp_path, lab, 2), PROGRAMS / "mixed.py") as ranks:
        end_well(ranks, 250)
        assert [rank.printed[-1] for rank in ranks] == [
            f"rank {number}: wrong: []" for number in range(2)
        ]
