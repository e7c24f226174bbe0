# SPDX-License-Identifier: Apache-2.0
"""Four hosts for the tests of `harp check`, made once for each test file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from crowd import Crowd

from tools.hosts.lab import Lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    with Lab(hosts=4, wire="veth-9000") as made:
        yield made


@pytest.fixture
def crowd(lab: Lab, tmp_path: Path) -> Crowd:
    """Eight ranks on the four hosts."""
    return Crowd(lab, tmp_path)
