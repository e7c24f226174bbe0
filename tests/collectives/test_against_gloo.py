# SPDX-License-Identifier: Apache-2.0
"""Every collective of harp.torch gives what Gloo gives, see programs/conformance.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from torch_tests import PROGRAMS

from tools.hosts.lab import Lab
from tools.hosts.torch_job import end_well, sites, torch_job
from tools.hosts.torch_mark import needs_torch

FULL = bool(os.environ.get("HARP_TEST_FULL"))


@needs_torch
@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 300)
def test_results_are_those_of_gloo(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    places = sites(tmp_path, make_lab(hosts=4), 4)
    with torch_job(places, PROGRAMS / "conformance.py", "full" if FULL else "short") as ranks:
        end_well(ranks, 3500 if FULL else 280)
        told = [line for rank in ranks for line in rank.printed]
        assert sum("results compared, 0 wrong" in line for line in told) == 4, told
