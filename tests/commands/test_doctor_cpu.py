# SPDX-License-Identifier: Apache-2.0
"""harp doctor names the CPU quotas that stop running processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harp.cli import doctor, doctor_cpu, doctor_ranks
from harp.setup import sysfs


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sysfs, "ROOT", tmp_path)
    return tmp_path


def process(root: Path, pid: int, lines: str) -> None:
    (root / f"proc/{pid}").mkdir(parents=True)
    (root / f"proc/{pid}/cgroup").write_text(lines)


def group(root: Path, path: str, periods: int, throttled: int) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    text = f"usage_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 9\n"
    (folder / "cpu.stat").write_text(text)


def test_quota_of_a_group_or_of_one_above_it_is_named(root: Path) -> None:
    group(root, "pod", 100, 90)
    group(root, "pod/job", 0, 0)  # the quota is the pod's
    group(root, "free", 1000, 10)  # rarely
    process(root, 10, "0::/pod/job\n")
    process(root, 11, "0::/pod\n")
    process(root, 12, "0::/free\n")
    process(root, 13, "0::/../pod\n")  # outside of this cgroup namespace
    (found,) = doctor_cpu.check([10, 11, 12, 13, 99])
    assert (found.level, found.about) == ("note", "CPU quota")
    assert "process 10, process 11: throttled in 90 of 100 periods of /sys/fs/cgroup/pod; " in (
        found.text
    )


def test_quota_of_version_1_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(root, "cpu/docker/a", 50, 40)
    process(root, 10, "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n0::/\n")
    running = [replace(doctor_ranks.view(Path("/proc/self")), pid=10)]
    monkeypatch.setattr(doctor_ranks, "running", lambda: running)
    (found,) = (one for one in doctor.all_findings() if one.about == "CPU quota")
    assert "throttled in 40 of 50 periods of /sys/fs/cgroup/cpu/docker/a" in found.text
