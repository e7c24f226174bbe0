# SPDX-License-Identifier: Apache-2.0
"""Every collective of harp.torch gives what Gloo gives: the short form of tools/jobs conformance,
and its long form with HARP_TEST_FULL=1."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from tools.measure.jobs.command import main

FULL = bool(os.environ.get("HARP_TEST_FULL"))
SHORT = () if FULL else ("--short", "--group", "2", "--group", "3", "--group", "4")

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(7300 if FULL else 300)]


@pytest.mark.parametrize("hosts", ["1", "4"])
def test_results_are_those_of_gloo(hosts: str) -> None:
    done = CliRunner().invoke(main, ["conformance", "--hosts", hosts, *SHORT])
    assert done.exit_code == 0, done.output


def test_a_changed_result_is_told() -> None:
    done = CliRunner().invoke(main, ["conformance", "--inject-wrong", "--group", "2"])
    assert done.exit_code == 1
    assert "wrong: rank 0: " in done.output and "2 results differ" in done.output, done.output
