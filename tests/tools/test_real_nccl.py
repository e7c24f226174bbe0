# SPDX-License-Identifier: Apache-2.0
"""tools/bench --nccl: runs, records and verdicts, with a program in the place of NCCL's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.measure import bench
from tools.measure.bench_plan import HARP, MIB
from tools.measure.real_nccl import CHANNELS, OPERATIONS, SIZES, SOCKETS, Key, Results, parse

# Says what it was given, and that HARP is twice as fast as sockets.
PROGRAM = """#!/bin/sh
[ "$2" = 2 ] && [ "$4" = perf ] && mountpoint -q /dev/shm || exit 4
rate=1; [ "$NCCL_NET" = HARP ] && { rate=2; test -f "$HARP_CONF_DIR/ztcp0.conf" || exit 5; }
[ "$1" = 0 ] || exit 0
for op in $(echo $OPS | tr , ' '); do for size in $(echo $SIZES | tr , ' '); do
  echo "[0.1 r0] PERF $op bytes $size iters 9 us 5.0 busbw $rate.000 GB/s cpu_us 3.0 $VERDICT"
done; done
exit $STATUS
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the tool needs."""
    (tmp_path / "b218").mkdir()
    (tmp_path / "b218" / "libnccl.so.2").touch()
    (tmp_path / "nt").write_text(PROGRAM)
    (tmp_path / "nt").chmod(0o755)
    monkeypatch.setenv("VERDICT", "ok")
    monkeypatch.setenv("STATUS", "0")
    return tmp_path


def invoke(folder: Path, *args: str) -> tuple[int, str]:
    args = ("--nccl", str(folder), "--pairs", "1", *args)
    done = CliRunner().invoke(bench.main, args)
    return done.exit_code, done.output


def test_each_operation_is_compared(folder: Path) -> None:
    file = folder / "out.json"
    status, said = invoke(folder, "--json", str(file))
    assert status == 0, said
    count = len(OPERATIONS) * len(SIZES) * len(CHANNELS)
    assert said.count("\nmet     NCCL ") == count
    assert "NCCL all_reduce 1 MiB, 2 channels: bus bandwidth ≥ 1.3× NCCL's sockets: 2.00×" in said
    document = json.loads(file.read_text())
    assert len(document["records"]) == 2 * count and len(document["targets"]) == count
    assert {one["transport"] for one in document["records"]} == {SOCKETS, HARP}


@pytest.mark.parametrize("name, value", [("STATUS", "9"), ("VERDICT", "WRONG")])
def test_failures_and_wrong_elements_fail_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert invoke(folder)[0] == 1


def test_missing_build_is_reported(folder: Path) -> None:
    (folder / "b218" / "libnccl.so.2").unlink()
    status, said = invoke(folder)
    assert status == 1 and "libnccl.so.2 is missing" in said


def test_ratio_uses_pairs_with_both_sides() -> None:
    line = "PERF ar bytes 1048576 iters 9 us 5.0 busbw {} GB/s cpu_us 3.0 ok"
    results = Results(
        parse(line.format("2.0"), SOCKETS, 1, 0) + parse(line.format("9"), HARP, 1, 1)
    )
    assert results.ratio(Key("all_reduce", MIB, 1)) is None
    results.records += parse(line.format("3.0"), HARP, 1, 0)
    ratio = results.ratio(Key("all_reduce", MIB, 1))
    assert ratio and ratio.median == 1.5
