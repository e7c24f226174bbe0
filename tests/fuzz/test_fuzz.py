# SPDX-License-Identifier: Apache-2.0
"""Each fuzzer over its kept corpus and for some seconds more; and what is wrong on purpose."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Iterator

import fuzzers
import pytest

SECONDS = 20 if os.environ.get("HARP_TEST_FULL") else 5
AT_ONCE = 2

pytestmark = pytest.mark.timeout(600)
BUILT = pytest.mark.skipif(not fuzzers.built(), reason="tools/prepare --fuzz builds the fuzzers")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def runs(corpora) -> Iterator[dict[str, Future[fuzzers.Outcome]]]:
    """All of them, two at a time."""

    def one(target: fuzzers.Target) -> fuzzers.Outcome:
        return fuzzers.fuzz(target, fuzzers.unpack(target, corpora), SECONDS)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(one, target) for name, target in fuzzers.TARGETS.items()}


@pytest.mark.slow
@BUILT
@pytest.mark.parametrize("name", fuzzers.TARGETS)
def test_fuzzers_report_no_finding(runs, name):
    outcome = runs[name].result(timeout=500)
    assert not outcome.finding, outcome.finding
    assert outcome.executions > 100


def test_python_reader_fuzzing_reports_no_finding():
    outcome = fuzzers.fuzz_readers(3)
    assert not outcome.finding, outcome.finding
    assert outcome.executions > 100


TRAPS = {
    10: "use-after-poison",
    24: "use-after-poison",
    30: "use-after-poison",
    31: "use-after-poison",
    32: "use-after-poison",
    33: "use-after-poison",
}


def spring(tmp_path: Path, data: bytes) -> tuple[int, str]:
    path = tmp_path / "input"
    path.write_bytes(data)
    program = fuzzers.BUILD / "tests" / "fuzz" / "fuzz-trap"
    done = subprocess.run(
        [str(program), f"-artifact_prefix={tmp_path}/", "-runs=3", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100, check=False,
        env={**os.environ, "ASAN_OPTIONS": "", "UBSAN_OPTIONS": ""},
    )  # fmt: skip
    return done.returncode, done.stdout.decode("utf-8", "replace")


@BUILT
@pytest.mark.parametrize("fault", TRAPS)
def test_fuzzers_detect_planted_faults(tmp_path, fault):
    """Memory of the arena and of pools is watched like any other."""
    status, output = spring(tmp_path, bytes([fault]))
    assert status != 0
    assert TRAPS[fault] in output, output[-2000:]


@BUILT
def test_fuzz_state_is_restored_between_inputs(tmp_path):
    status, output = spring(tmp_path, bytes([0]))
    assert status == 0, output[-2000:]
