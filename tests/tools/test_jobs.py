# SPDX-License-Identifier: Apache-2.0
"""tools/jobs, once: HARP beside Gloo under torch.distributed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.hosts.torch_mark import needs_torch
from tools.measure.jobs import main, report


def test_report_divides_gloos_time_by_harps() -> None:
    records = [{"size": 65536, "gloo": [4e-4, 6e-4], "harp": [2e-4, 2e-4]}]
    assert report(records).splitlines()[-1].split("|")[1:5] == [
        " 64 KiB     ", " 500 (400–600) ", " 200 (200–200) ", "     2.50 (2.00–3.00) ",
    ]  # fmt: skip


@pytest.mark.slow
@needs_torch
def test_all_reduce_is_timed(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    words = ["all-reduce", "--rounds", "2", "--size", "8", "--size", "65536", "--json", str(file)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "| 64 KiB" in done.output
    records = json.loads(file.read_text())["records"]
    assert [one["size"] for one in records] == [8, 65536]
    assert all(len(one[name]) == 2 for one in records for name in ("gloo", "harp"))
