# SPDX-License-Identifier: Apache-2.0
"""The stack's instructions for a segment stay within bounds, and the counting works."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from harp.paths import build_dir
from tools.measure.instructions import (
    FEW,
    FLOWS,
    GROWTH_MOST,
    STEPS,
    CannotCount,
    Cost,
    Step,
    cost_of,
    count,
    slowdown,
)

ANNOTATED = """
--------------------------------------------------------------------------------
Ir
--------------------------------------------------------------------------------
10,500 (100.0%)  PROGRAM TOTALS
10,500 (100.0%)  ???:measure_transmit [/x/harp-segments]
10,000 (95.2%)  /x/stack.c:harp_stack_flush [/x/harp-segments]
 2,000 (19.0%)  /x/segments.c:hand_over [/x/harp-segments]
   400 ( 3.8%)  ./string/memmove.S:__memcpy_avx_unaligned_erms [/usr/lib/libc.so.6]
"""


def test_instructions_outside_stack_are_excluded() -> None:
    assert cost_of(STEPS[0], ANNOTATED, segments=32, acknowledgements=1) == Cost(250.0, 8000.0)


def test_function_missing_from_profile_is_an_error() -> None:
    with pytest.raises(CannotCount, match="has not recorded harp_stack_receive"):
        cost_of(STEPS[1], ANNOTATED, 32, 1)


@pytest.mark.parametrize("connections", [1, 40])
def test_segment_program_moves_every_byte(connections: int) -> None:
    args = [build_dir() / "tools" / "measure" / "harp-segments", str(connections), "100"]
    said = subprocess.run(args, capture_output=True, text=True, timeout=100, check=True).stdout
    *counted, took = map(int, said.split())
    assert counted == [3200, 100] and took > 0


def test_time_of_flows_is_compared() -> None:
    assert slowdown(pairs=3, rounds=500) > 0


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("valgrind"), reason="there is no valgrind")
@pytest.mark.parametrize("step", [step for step in STEPS if step.most], ids=lambda step: step.name)
def test_instructions_per_segment_stay_below_limit(step: Step) -> None:
    cost = count(step, FEW)
    print(f"{step.name}: {cost.segment:.0f} instructions a segment")
    assert 100 < cost.segment <= step.most


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("valgrind"), reason="there is no valgrind")
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_instructions_do_not_grow_with_flows(step: Step) -> None:
    one, many = count(step, 1).segment, count(step, FLOWS).segment
    print(f"{step.name}: {one:.1f} instructions a segment, with {FLOWS} flows {many:.1f}")
    assert many <= GROWTH_MOST * one
