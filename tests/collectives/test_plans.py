# SPDX-License-Identifier: Apache-2.0
"""The schedules of all collectives on up to 9 ranks, and their loops, without a network."""

from __future__ import annotations

from built_programs import run


def test_plans_match_end_and_give_right_elements() -> None:
    run("plan-check")


def test_windows_give_right_elements_in_any_order() -> None:
    run("window-check")


def test_reductions_and_conversions() -> None:
    run("reduce-check")


def test_candidates_of_top_k() -> None:
    run("candidates-check")
