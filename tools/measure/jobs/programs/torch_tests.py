# SPDX-License-Identifier: Apache-2.0
"""One rank of torch's own tests of a backend. Usage: torch_tests.py BACKEND LIKE

Many tests are for named backends only. torch chooses when its module of tests is loaded: it takes
the tests for LIKE, and they run on BACKEND.

Prints {"tests": {name: why it is skipped on BACKEND, or ""}}. Reads a line for each test: RANK
RANKS FOLDER NAME. FOLDER: shared by the ranks. The test runs in a fork of this process. The fork
prints {"told": why it was skipped, or the traceback}. Its exit status is that of torch's class: 0,
10 for an exception, or the number of a reason to skip.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
import unittest
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

BACKEND, LIKE = sys.argv[1:]
os.environ.update(BACKEND=LIKE, MASTER_ADDR="localhost", TORCH_CPP_LOG_LEVEL="ERROR")

from torch.testing._internal import common_distributed as common  # noqa: E402

import harp.torch  # noqa: E402, F401
from tools.measure.jobs.programs.forks import serve, tell  # noqa: E402

for feature in ("ddp", "subgroup", "plugin"):  # a backend of another project has these
    common.DistTestCases.backend_feature[feature].add(BACKEND)

from torch.testing._internal.distributed import distributed_test as theirs  # noqa: E402

theirs.BACKEND = BACKEND  # of the group
BARRIER_S = 120  # for the ranks to meet beside a test, on a busy machine


class Tests(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):  # type: ignore[misc]
    """torch's tests. The processes that their setUp would start are the forks."""

    skip_reason = ""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        test = getattr(self, name)

        @functools.wraps(test)
        def keep_reason() -> None:
            try:
                test()
            except unittest.SkipTest as skip:
                Tests.skip_reason = str(skip)
                raise

        setattr(self, name, keep_reason)

    def run_test(self, *arguments: Any) -> None:
        """Runs the test once the group is made: its branches are those for LIKE."""
        theirs.BACKEND = LIKE
        super().run_test(*arguments)

    def _barrier(self, *arguments: Any, **named: Any) -> None:
        super()._barrier(*arguments, **{"timeout": BARRIER_S, **named})


def run_test(rank: int, folder: str, name: str) -> tuple[int, str]:
    """Returns the exit status, and what to tell of it."""
    reader, writer = Pipe()
    status, text = 0, ""
    try:
        Tests._run(rank, name, os.path.join(folder, "store"), writer)
    except SystemExit as end:
        status = int(end.code or 0)
        with suppress(EOFError):
            text = reader.recv() if reader.poll() else ""
    except Exception:
        status, text = common.MultiProcessTestCase.TEST_ERROR_EXIT_CODE, traceback.format_exc()
    reasons = (one.message for one in common.TEST_SKIPS.values() if one.exit_code == status)
    return status, text or Tests.skip_reason or next(reasons, "")


def run(args: Sequence[str]) -> None:
    rank, ranks, folder, name = args
    os.environ.update(WORLD_SIZE=ranks, TEMP_DIR=folder)
    records = os.dup(1)
    os.dup2(2, 1)  # tests print, too
    status, text = run_test(int(rank), folder, name)
    sys.stdout.flush()
    os.dup2(records, 1)
    tell(told=text)
    os._exit(status)


def main() -> None:
    names = unittest.TestLoader().getTestCaseNames(Tests)
    tell(tests={name: getattr(getattr(Tests, name), "__unittest_skip_why__", "") for name in names})
    serve(run)


if __name__ == "__main__":
    main()
