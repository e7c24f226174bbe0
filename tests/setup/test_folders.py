# SPDX-License-Identifier: Apache-2.0
"""Set-up makes folders as root, safely in world-writable folders where a link may appear."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from harp.setup.steps import MakeFolder, StepError, write_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def everybodys(tmp_path: Path) -> Path:
    folder = tmp_path / "everybodys"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    folder.mkdir(mode=0o700)
    return folder


def test_folder_is_made_with_parents(everybodys: Path) -> None:
    path = everybodys / "a/b/run"
    MakeFolder(str(path), 0o1777).do()
    assert mode(path) == 0o1777 and mode(path.parent) == 0o755
    MakeFolder(str(path), 0o1777).do()  # again, after a crash


def test_folder_has_its_mode_from_the_start(
    everybodys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set-up that is killed here leaves the folder, and the next one does not change it."""

    def killed(fd: int, mode: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fchmod", killed)
    before = os.umask(0o077)
    try:
        with pytest.raises(KeyboardInterrupt):
            MakeFolder(str(everybodys / "a/run"), 0o1777).do()
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    assert mode(everybodys / "a/run") == 0o1777 and mode(everybodys / "a") == 0o755


def test_symlink_instead_of_folder_is_refused(everybodys: Path, victim: Path) -> None:
    (everybodys / "run").symlink_to(victim)
    with pytest.raises(StepError, match="run"):
        MakeFolder(str(everybodys / "run"), 0o1777).do()
    assert mode(victim) == 0o700


def test_symlink_above_folder_is_refused(everybodys: Path, victim: Path) -> None:
    (everybodys / "tools").symlink_to(victim)
    with pytest.raises(StepError, match="tools"):
        MakeFolder(str(everybodys / "tools/run"), 0o1777).do()
    assert os.listdir(victim) == []


def test_symlink_of_root_is_followed(tmp_path: Path, victim: Path) -> None:
    """/usr/local is a symlink on many hosts."""
    (tmp_path / "local").symlink_to(victim)
    MakeFolder(str(tmp_path / "local/run"), 0o755).do()
    assert mode(victim / "run") == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders away: needs root")
def test_folder_of_other_user_is_refused(everybodys: Path) -> None:
    path = everybodys / "tools"
    path.mkdir()
    os.chown(path, 12345, -1)
    for wanted in (path, path / "run"):
        with pytest.raises(StepError, match="12345"):
            MakeFolder(str(wanted), 0o755).do()
    assert os.listdir(path) == []


def left_by_processes(run: Path) -> list[Path]:
    """Files as ended processes leave them (harp/engine/rundir.h)."""
    files = [run / f"0123456789abcde{i}{end}" for i, end in enumerate((".stat", ".new", ".trace"))]
    for file in files:
        file.write_text("left")
    sockets = [run / "0123456789abcde0-0.capture", run / "00000000000000aa-12.capture"]
    for path in sockets:
        os.mknod(path, stat.S_IFSOCK | 0o600)
    return files + sockets


def test_run_folder_with_files_of_ended_processes_is_removed(tmp_path: Path) -> None:
    step = MakeFolder(str(tmp_path / "run"), 0o1777)
    step.do()
    left_by_processes(tmp_path / "run")
    assert step.undo() == f"removed the folder {tmp_path / 'run'}"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("other", ["running", "notes", "link", "fifo", "folder", "file"])
def test_run_folder_with_other_things_is_kept_whole(
    other: str, tmp_path: Path, victim: Path
) -> None:
    """Its traces, too: the user sees the folder and decides."""
    step = MakeFolder(str(tmp_path / "run"), 0o1777)
    step.do()
    left = left_by_processes(tmp_path / "run")
    name = tmp_path / "run/fedcba9876543210.trace"
    with ExitStack() as stack:
        if other == "running":
            fcntl.flock(stack.enter_context(left[0].open()), fcntl.LOCK_EX)
        elif other == "notes":
            (tmp_path / "run/notes.trace").write_text("mine")
        elif other == "link":
            name.symlink_to(victim)
        elif other == "fifo":
            os.mkfifo(name)
        elif other == "file":
            (tmp_path / "run/fedcba9876543210-0.capture").write_text("mine")
        else:
            name.mkdir()
        assert step.undo() == f"left the folder {tmp_path / 'run'}: it is not empty"
    assert all(file.exists() for file in left)


def test_symlink_instead_of_temporary_file_is_replaced(everybodys: Path, victim: Path) -> None:
    target = victim / "precious"
    target.write_text("kept")
    (everybodys / ".ztcp0.conf.new").symlink_to(target)
    write_file(everybodys / "ztcp0.conf", "text")
    assert target.read_text() == "kept"
    assert (everybodys / "ztcp0.conf").read_text() == "text"
    assert not (everybodys / "ztcp0.conf").is_symlink()
