# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures for tests that need hosts: `from tools.hosts.lab_fixtures import lab`."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Iterator

import pytest

from tools.hosts.lab import Lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts on a wire, made once for each test file."""
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    with Lab(hosts=2, wire="veth-1500") as made:
        yield made


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """Makes labs, with Lab's arguments. The end of the test removes them."""
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    with contextlib.ExitStack() as stack:

        def make(*args: Any, **options: Any) -> Lab:
            return stack.enter_context(Lab(*args, **options))

        yield make
