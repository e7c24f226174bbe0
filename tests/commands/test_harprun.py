# SPDX-License-Identifier: Apache-2.0
"""harprun sets a job's environment and replaces itself by the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harp.cli import main

RUN = "from harp.cli.main import run_main; run_main()"


@pytest.fixture
def harprun(folders: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders / "cache"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)

    def run(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", RUN, *args], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "libnccl-net-harp.so"
    path.write_text("a plugin")
    return path


def test_harprun_sets_ld_library_path(
    harprun: Any, plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    monkeypatch.setenv("NCCL_NET_PLUGIN", "other")
    for _ in range(2):
        found = dict(
            line.split("=", 1)
            for line in harprun("--plugin", str(plugin), "env").stdout.splitlines()
            if "=" in line
        )
        first, second = found["LD_LIBRARY_PATH"].split(":")
        assert (Path(first) / "libnccl-net.so").read_text() == "a plugin"
        assert second == "/opt/lib"
        assert "NCCL_NET_PLUGIN" not in found and "NCCL_NET" not in found


def test_job_has_the_default_actions_of_signals(harprun: Any, plugin: Path) -> None:
    """Python ignores SIGPIPE and SIGXFSZ, and exec keeps an ignored signal ignored."""
    done = harprun("--plugin", str(plugin), "grep", "SigIgn", "/proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


@pytest.mark.parametrize("command", ["nc", "perf"])
def test_program_has_the_default_actions_of_signals(
    folders: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    seen = []

    def execv(program: Any, arguments: Any) -> None:
        seen.extend(signal.getsignal(one) for one in (signal.SIGPIPE, signal.SIGXFSZ))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    numbers = (signal.SIGPIPE, signal.SIGXFSZ)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        done = CliRunner().invoke(main.harp, [command, "sendrecv"])
        assert (done.exit_code, seen) == (0, [signal.SIG_DFL] * 2), done.output
    finally:
        for number, action in zip(numbers, before):
            signal.signal(number, action)


def test_plugin_with_nccl_name_needs_no_link(harprun: Any, tmp_path: Path) -> None:
    (tmp_path / "libnccl-net.so").write_text("a plugin")
    done = harprun(
        "--plugin", str(tmp_path / "libnccl-net.so"), "sh", "-c", "echo $LD_LIBRARY_PATH"
    )
    assert done.stdout.strip() == str(tmp_path)


def test_two_installations_have_separate_links(harprun: Any, folders: Path, tmp_path: Path) -> None:
    """Jobs of both installations can run at the same time."""
    found = {}
    for name in ("one", "two", "one"):
        path = tmp_path / name / "libnccl-net-harp.so"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"plugin {name}")
        found[name] = harprun("--plugin", str(path), "sh", "-c", "echo $LD_LIBRARY_PATH").stdout
    for name, folder in found.items():
        assert (Path(folder.strip()) / "libnccl-net.so").read_text() == f"plugin {name}"


def test_concurrent_harpruns_share_one_link(harprun: Any, plugin: Path, tmp_path: Path) -> None:
    """Ranks of several hosts may share a home folder."""
    args = [
        sys.executable,
        "-c",
        RUN,
        "--plugin",
        str(plugin),
        "sh",
        "-c",
        "cat $LD_LIBRARY_PATH/libnccl-net.so",
    ]
    jobs = [subprocess.Popen(args, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert [job.communicate(timeout=60)[0] for job in jobs] == ["a plugin"] * 6
    left = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_symlink()]
    assert left == ["libnccl-net.so"]


def test_unwritable_home_falls_back(
    harprun: Any, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL 2.11 and later find the plugin by its name in the wheel. harprun leaves no files."""
    for name in ("file", "passing", "runtime"):
        (tmp_path / name).mkdir() if name != "file" else (tmp_path / name).write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "passing"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    show = ("sh", "-c", "echo $NCCL_NET_PLUGIN $LD_LIBRARY_PATH")
    done = harprun("--plugin", str(plugin), *show)
    assert done.stdout == f"harp {plugin.parent}\n"
    assert "NCCL before 2.11 will not find the plugin. Set XDG_CACHE_HOME." in done.stderr
    other = plugin.rename(tmp_path / "libmine.so")
    assert harprun("--plugin", str(other), *show).stdout == f"{other} {tmp_path}\n"
    assert list((tmp_path / "passing").iterdir()) == []
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    done = harprun("--plugin", str(other), "sh", "-c", "cat $LD_LIBRARY_PATH/libnccl-net.so")
    assert done.stdout == "a plugin" and done.stderr == ""


def test_version_and_help(harprun: Any) -> None:
    assert harprun("--version").stdout.startswith("harp ")
    assert harprun("-h").stdout == harprun("--help").stdout


def test_job_arguments_and_exit_status_are_kept(harprun: Any, plugin: Path) -> None:
    done = harprun(
        "--plugin",
        str(plugin),
        "sh",
        "-c",
        'echo "$@" $$; exit 7',
        "x",
        "--help",
        "-n",
        "--",
        "two words",
        code=7,
    )
    assert done.stdout.startswith("--help -n -- two words")
    assert (
        harprun("--plugin", str(plugin), "--insist", "sh", "-c", "echo $NCCL_NET").stdout
        == "HARP\n"
    )


def test_invalid_requests_are_refused(harprun: Any, plugin: Path) -> None:
    harprun(code=2)
    assert (
        "no-such-job: no such command"
        in harprun("--plugin", str(plugin), "no-such-job", code=1).stderr
    )
    assert "Permission denied" in harprun("--plugin", str(plugin), str(plugin), code=1).stderr


def test_missing_plugin_names_harp_build(
    harprun: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARP_BUILD_DIR", str(tmp_path))
    assert "build it with" in harprun("true", code=1).stderr
