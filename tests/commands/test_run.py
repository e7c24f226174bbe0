# SPDX-License-Identifier: Apache-2.0
"""harprun: what a job's environment is, and that the job takes its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = "from harp.cli import run_main; run_main()"


@pytest.fixture
def harprun(folders: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders / "cache"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "libnccl-net-harp.so"
    path.write_text("a plugin")
    return path


def test_nccl_finds_the_name_that_all_releases_look_for(
        harprun: Any, plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    monkeypatch.setenv("NCCL_NET_PLUGIN", "other")
    for _ in range(2):
        found = dict(line.split("=", 1) for line in harprun(
            "--plugin", str(plugin), "env").stdout.splitlines() if "=" in line)
        first, second = found["LD_LIBRARY_PATH"].split(":")
        assert (Path(first) / "libnccl-net.so").read_text() == "a plugin"
        assert second == "/opt/lib"
        assert "NCCL_NET_PLUGIN" not in found and "NCCL_NET" not in found


def test_a_plugin_of_that_name_needs_no_link(harprun: Any, tmp_path: Path) -> None:
    (tmp_path / "libnccl-net.so").write_text("a plugin")
    done = harprun("--plugin", str(tmp_path / "libnccl-net.so"), "sh", "-c",
                   "echo $LD_LIBRARY_PATH")
    assert done.stdout.strip() == str(tmp_path)


def test_a_home_that_cannot_be_written(
        harprun: Any, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = harprun("--plugin", str(plugin), "sh", "-c", "cat $LD_LIBRARY_PATH/libnccl-net.so")
    assert done.stdout == "a plugin"


def test_the_job_keeps_its_words_and_its_status(harprun: Any, plugin: Path) -> None:
    done = harprun("--plugin", str(plugin), "sh", "-c", 'echo "$@" $$; exit 7', "x", "--help",
                   "-n", "--", "two words", code=7)
    assert done.stdout.startswith("--help -n -- two words")
    assert harprun("--plugin", str(plugin), "--insist", "sh", "-c", "echo $NCCL_NET").stdout == \
        "HARP\n"


def test_refusals(harprun: Any, plugin: Path) -> None:
    harprun(code=2)
    assert "no-such-job: no such command" in harprun(
        "--plugin", str(plugin), "no-such-job", code=1).stderr
    assert "Permission denied" in harprun("--plugin", str(plugin), str(plugin), code=1).stderr


def test_without_a_plugin_the_way_to_it_is_told(
        harprun: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARP_BUILD_DIR", str(tmp_path))
    assert "build it with" in harprun("true", code=1).stderr
