# SPDX-License-Identifier: Apache-2.0
"""Runs fuzzers over their kept corpora, and adds to these what was found."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = Path(os.environ.get("HARP_FUZZ_BUILD_DIR") or ROOT / "build-fuzz")
CORPORA = HERE / "corpora"

EXECUTED = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
# An input may take long only where the machine has other work.
LIMITS = ("-rss_limit_mb=2048", "-timeout=60", "-print_final_stats=1")


class FuzzError(RuntimeError):
    """A fuzzer that could not be run."""


@dataclass(frozen=True)
class Target:
    """`longest`: bytes of an input."""

    name: str
    longest: int

    @property
    def program(self) -> Path:
        return BUILD / "tests" / "fuzz" / f"fuzz-{self.name}"

    @property
    def kept(self) -> Path:
        return CORPORA / f"{self.name}.zip"


TARGETS = {
    target.name: target
    for target in (
        Target("frame", 2048),
        Target("tcp", 1024),
        Target("options", 48),
        Target("control", 768),
        Target("config", 1500),
        Target("formats", 80),
        Target("link", 1024),
    )
}


@dataclass(frozen=True)
class Outcome:
    """`finding`: the end of what the fuzzer said if it found something, else ""."""

    target: str
    executions: int
    finding: str


def built() -> bool:
    return all(target.program.is_file() for target in TARGETS.values())


def unpack(target: Target, folder: Path) -> Path:
    """The kept corpus, as files in a folder of its own below `folder`."""
    place = folder / target.name
    place.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target.kept) as kept:
        kept.extractall(place)
    return place


def run(target: Target, folder: Path, *options: str) -> Outcome:
    """One fuzzer over the corpus in `folder`, which grows. What it finds is left beside that
    as TARGET-crash-... Raises FuzzError if it does not run at all."""
    artifacts = f"{folder.parent}/{target.name}-"
    command = [
        str(target.program), *LIMITS, "-entropic=0", f"-max_len={target.longest}",
        f"-artifact_prefix={artifacts}", *options, str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    output = done.stdout.decode("utf-8", "replace")
    executed = EXECUTED.search(output)
    if done.returncode == 0 and not executed:
        raise FuzzError(f"{target.program} said nothing of what it did:\n{output[-2000:]}")
    finding = "" if done.returncode == 0 else output[-6000:]
    return Outcome(target.name, int(executed[1]) if executed else 0, finding)


def replay(target: Target, folder: Path) -> Outcome:
    """Every input of the corpus once."""
    return run(target, folder, "-runs=0")


def fuzz(target: Target, folder: Path, seconds: int) -> Outcome:
    return run(target, folder, f"-max_total_time={seconds}")


def fuzz_readers(seconds: int, seed: int = 0) -> Outcome:
    """The readers of files, which are Python: readers.py."""
    done = subprocess.run(
        [sys.executable, str(HERE / "readers.py"), str(seconds), str(seed)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    output = done.stdout.decode("utf-8", "replace")
    executed = EXECUTED.search(output)
    return Outcome("readers", int(executed[1]) if executed else 0,
                   "" if done.returncode == 0 else output[-6000:])  # fmt: skip


def keep(target: Target, folder: Path) -> int:
    """Writes the smallest set of inputs that reaches what the corpus in `folder` and the kept
    one reach; returns how many they are. The archive depends on their bytes alone."""
    least = folder.parent / f"{target.name}-least"
    least.mkdir(exist_ok=True)
    command = [
        str(target.program), "-merge=1", "-entropic=0", f"-max_len={target.longest}",
        str(least), str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise FuzzError(done.stdout.decode("utf-8", "replace")[-2000:])
    inputs = sorted(path for path in least.iterdir() if path.is_file())
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for path in inputs:
            out.writestr(zipfile.ZipInfo(path.name[:16]), path.read_bytes(), zipfile.ZIP_DEFLATED)
    CORPORA.mkdir(exist_ok=True)
    target.kept.write_bytes(archive.getvalue())
    return len(inputs)
