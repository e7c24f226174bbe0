# SPDX-License-Identifier: Apache-2.0
"""A short soak: nothing grows and no byte is wrong. Growth and wrong bytes are detected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.measure.soak import GROWTH_KIB, Sample, growth

LEVEL_KIB = 100_000


def soak(*args: object) -> subprocess.CompletedProcess[str]:
    if os.geteuid() != 0:
        pytest.skip("a lab's hosts need root")
    command = [sys.executable, "-m", "tools.measure.soak", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_short_soak_finds_no_growth(tmp_path: Path) -> None:
    done = soak("--messages", 400_000, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert (document["schema"], document["wrong"]) == ("harp.soak/1", 0)
    assert document["messages"] == 400_000
    assert document["failures"] == []


@pytest.mark.slow
def test_minutes_option_limits_soak(tmp_path: Path) -> None:
    """The messages until the limit count, and both ranks report that they were right. The run is
    long enough for the first long burst of frames to fall into its first fifths."""
    done = soak("--minutes", 0.3, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["wrong"] == 0 and 0 < document["messages"] < document["wanted"]
    assert 15 < document["seconds"] < 60


def test_injected_wrong_byte_is_detected() -> None:
    done = soak("--messages", 20_000, "--inject-wrong")
    assert done.returncode == 1
    assert "FAIL 1 bytes are wrong" in done.stderr


def samples(resident_kib: float = 0, descriptors: float = 0, early_kib: float = 0) -> list[Sample]:
    """Samples in which the second rank grows by these amounts over the run; early_kib: only in the
    first fifth."""
    found = []
    for i in range(101):
        gained = resident_kib * i / 100 + early_kib * min(1.0, i / 20)
        found.append(
            Sample(
                seconds=i,
                messages=i * 1000,
                resident_kib=(LEVEL_KIB, LEVEL_KIB + round(gained)),
                descriptors=(24, 24 + round(descriptors * i / 100)),
            )
        )
    return found


def test_constant_use_is_no_growth() -> None:
    assert growth(samples()) == []
    assert growth(samples(early_kib=50_000)) == []
    assert growth(samples(resident_kib=GROWTH_KIB)) == []
    assert growth(samples(resident_kib=-9000, descriptors=-4)) == []


@pytest.mark.parametrize(
    "change,said",
    [
        ({"resident_kib": 2 * GROWTH_KIB}, "rank 1: resident memory grew from "),
        ({"descriptors": 3}, "rank 1: descriptors grew from 25 to 27"),
    ],
)
def test_growth_is_detected(change: dict[str, float], said: str) -> None:
    (found,) = growth(samples(**change))
    assert found.startswith(said)


def test_too_few_samples_are_refused() -> None:
    for few in ([], samples()[:1], samples()[:1] + samples()[-1:]):
        assert "too few samples" in growth(few)[0]


@pytest.mark.parametrize("args", [["--messages", "5"], ["--minutes", "0"], ["--forever"]])
def test_wrong_usage_exits_2(args: list[str]) -> None:
    assert soak(*args).returncode == 2
