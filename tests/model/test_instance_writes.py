# SPDX-License-Identifier: Apache-2.0
"""The instances of a process write to no common cache line in the steady state, except for the
requests of the links that they share."""

from __future__ import annotations

import os
import shutil

import pytest
from writes import Watched

# Two links, one in each direction, each with a flow on both instances of both sides.
SETTINGS = "flows=2 instances=2,2 tso=1; open 0 0; open 1 1; time 3000"
ROUND = "; send 0 6000; send 1 6000; recv 0 1; recv 1 1; time 1000"
SIDES = {"a": (1, 2), "b": (5, 6)}  # the phases of a side's instances (links.h)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SANITIZER_RUNTIME" in os.environ, reason="sanitizers write, too"),
    pytest.mark.skipif(not shutil.which("valgrind"), reason="there is no valgrind"),
]


@pytest.fixture(scope="module")
def watched() -> Watched:
    return Watched(f"{SETTINGS}{ROUND * 2}; watch 1{ROUND * 2}; watch 0")


@pytest.mark.parametrize("side", SIDES)
def test_instances_write_to_no_common_cache_line(watched: Watched, side: str) -> None:
    assert watched.complete
    for phase in SIDES[side]:
        functions = set().union(*watched.writes[phase].values())
        assert {"poll_once", "tcp_predicted", "harp_stack_flush"} <= functions
    for line, functions in watched.shared(*SIDES[side]).items():
        pytest.fail(f"both write to the line at {line * 64:#x}: {', '.join(sorted(functions))}")
