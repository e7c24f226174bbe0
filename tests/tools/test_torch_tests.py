# SPDX-License-Identifier: Apache-2.0
"""tools/jobs torch-tests: its verdicts and tables, and some tests of torch."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.measure.jobs.command import main
from tools.measure.jobs.torch_tests import FAILED, PASSED, SKIPPED, Result, report, verdict

needs_expecttest = pytest.mark.skipif(
    importlib.util.find_spec("expecttest") is None, reason="no expecttest: pip install expecttest"
)


def test_a_test_passes_if_it_does_on_all_ranks() -> None:
    assert verdict([0, 0], ["", ""]) == (PASSED, "")


def test_an_exception_counts_more_than_the_ranks_killed_after_it() -> None:
    assert verdict([-9, 10, 86], ["", "ValueError", "no GPU"]) == (FAILED, "rank 1: ValueError")


def test_a_crash_is_a_failure() -> None:
    assert verdict([0, -11], ["", ""]) == (FAILED, "rank 1: status -11")


def test_a_status_without_a_meaning_is_a_failure() -> None:
    assert verdict([0, 1], ["", ""]) == (FAILED, "rank 1: status 1")


def test_a_skip_tells_its_reason() -> None:
    assert verdict([74, 74], ["no GPU", "no GPU"]) == (SKIPPED, "no GPU")


def test_the_report_counts_ends_and_joins_tests_of_a_reason() -> None:
    results = [
        Result("test_a", "harp", PASSED),
        Result("test_b", "harp", SKIPPED, "no GPU"),
        Result("test_c", "gloo", SKIPPED, "no GPU"),
        Result("test_d", "harp", FAILED, "rank 0: Traceback\n  a line\nValueError: wrong\n"),
    ]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in report(results).split("\n")
    ]
    for row in (
        [PASSED, "1"],
        [FAILED, "1"],
        [SKIPPED, "2"],
        [SKIPPED, "no GPU", "2", "test_b, test_c"],
        [FAILED, "ValueError: wrong", "1", "test_d"],
    ):
        assert row in rows, rows


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.torch
@needs_expecttest
def test_tests_of_torch_run_on_hosts(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    names = ("test_reduce_sum", "test_all_to_all", "test_monitored_barrier_gloo")
    args = [word for name in names for word in ("--only", name)]
    done = CliRunner().invoke(main, ["torch-tests", "--like", "mpi", "--json", str(file), *args])
    assert done.exit_code == 0, done.output
    records = {one["name"]: one for one in json.loads(file.read_text())["records"]}
    ends = {name: (records[name]["like"], records[name]["end"]) for name in names}
    assert ends == {
        "test_reduce_sum": ("harp", PASSED),
        "test_all_to_all": ("mpi", PASSED),
        "test_monitored_barrier_gloo": ("mpi", SKIPPED),
    }
