# SPDX-License-Identifier: Apache-2.0
"""Two hosts on a wire, made once for each file of tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from harp.testing.lab import Lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    with Lab(hosts=2, wire="veth-1500") as made:
        yield made
