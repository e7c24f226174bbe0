# SPDX-License-Identifier: Apache-2.0
"""The lock of a folder that another set-up may make or take away meanwhile."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harp.setup import lock
from harp.setup.steps import StepError


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Another set-up's lock. Raises BlockingIOError if there is one already."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "config"
    made.mkdir()
    return made


def test_second_setup_waits(folder: Path) -> None:
    other = held(folder)
    other.__enter__()
    asked = 0

    def place() -> Path:
        nonlocal asked
        asked += 1
        if asked == 3:
            other.__exit__(None, None, None)
        return folder

    with lock.only_one(place):
        assert asked >= 3
        with pytest.raises(BlockingIOError), held(folder):
            pass
    with held(folder):
        pass


def test_second_setup_does_not_wait_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.2)
    with held(folder), pytest.raises(StepError, match="another harp setup is changing .*/config"):
        with lock.only_one(lambda: folder):
            pass


def test_parent_is_locked_when_the_folder_has_gone(folder: Path) -> None:
    """Undo takes the folder away while others wait."""
    asked = 0

    def place() -> Path:
        nonlocal asked
        asked += 1
        if asked == 3:
            folder.rename(folder.with_name("gone"))
        return folder if folder.is_dir() else folder.parent

    with held(folder), lock.only_one(place):
        with pytest.raises(BlockingIOError), held(folder.parent):
            pass


def test_lock_is_of_the_folder_that_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another set-up may take the folder away and make it again, between the open and the lock."""
    really, changes = fcntl.flock, [folder.with_name("gone")]

    def flock(fd: int, how: int) -> None:
        if changes:
            folder.rename(changes.pop())
            folder.mkdir()
        really(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock.only_one(lambda: folder):
        with pytest.raises(BlockingIOError), held(folder):
            pass


def test_lock_got_too_late_is_given_back(folder: Path) -> None:
    """The folder went after the question, and before the lock."""
    answers = [folder.parent, folder, folder, folder]
    with lock.only_one(lambda: answers.pop(0)):
        with held(folder.parent):
            pass
