# SPDX-License-Identifier: Apache-2.0
"""The folder of the journal. One rename creates it, with the journal inside, and one rename
removes it. So a kill at any moment leaves nothing that undo cannot find."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harp.setup.journal import NAME, Journal
from harp.setup.lock import only_one
from harp.setup.steps import MakeFolder, Step, StepError, sync_folder, unfinished

_OURS = {NAME, unfinished(Path(NAME)).name}


def missing_folders(path: Path) -> list[Path]:
    """The missing folders of the path, the topmost first."""
    missing: list[Path] = []
    while not path.is_dir():
        missing.insert(0, path)
        path = path.parent
    return missing


def is_home(step: Step, conf: Path) -> bool:
    """Whether the step makes the journal's folder or a parent of it."""
    return isinstance(step, MakeFolder) and Path(step.path) in (conf, *conf.parents)


def _hidden(folder: Path) -> Path:
    """A folder's temporary name while it is made or removed."""
    return folder.with_name(f".{folder.name}.harp-setup")


def _clear(folder: Path) -> None:
    """Removes a folder with its journal and empty subfolders. Raises OSError if it holds more."""
    for path, _, files in os.walk(folder, topdown=False):
        for name in _OURS.intersection(files):
            os.unlink(Path(path) / name)
        os.rmdir(path)


def sweep(conf: Path) -> Iterator[str]:
    """Removes the temporary folders that a kill left, and yields a line for each. Raises
    StepError."""
    for folder in (conf, *list(conf.parents)[:-1]):
        hidden = _hidden(folder)
        if not hidden.is_dir():
            continue
        try:
            _clear(hidden)
        except OSError as failure:
            raise StepError(f"{failure}; check the files in {hidden}, then remove it") from None
        yield f"removed {hidden}, left by a crash"


def _make(conf: Path, stack: ExitStack) -> list[Step]:
    """Makes the folder, and locks it before others can see it. The stack keeps the lock."""
    missing = missing_folders(conf)
    top = missing[0]
    hidden = _hidden(top)
    journal = Journal(hidden / conf.relative_to(top))
    made: list[Step] = [MakeFolder(str(path), 0o755) for path in missing]
    for path in missing:
        new = hidden / path.relative_to(top)
        os.mkdir(new)
        os.chmod(new, 0o755)
    journal.take_as_made(made)
    stack.enter_context(only_one(lambda: journal.path.parent))
    os.rename(hidden, top)
    sync_folder(top.parent)
    return made


@contextmanager
def locked(conf: Path) -> Iterator[None]:
    """Locks out a second set-up, also while the folder does not exist. Waits while one runs.
    Raises StepError if it does not end."""

    def place() -> Path:
        missing = missing_folders(conf)
        return missing[0].parent if missing else conf

    with only_one(place):
        yield


@contextmanager
def opened(conf: Path) -> Iterator[list[Step]]:
    """Locks the folder, and makes it if it is missing. Yields the steps made, which are in the
    journal already. Raises StepError or OSError."""
    with locked(conf), ExitStack() as stack:
        for _ in sweep(conf):
            pass
        if conf.is_dir():
            yield []
            return
        yield _make(conf, stack)


def _holds_only(folder: Path, made: list[Path], conf: Path) -> bool:
    """Whether a folder holds only the journal and other folders that set-up made."""
    for path, _, files in os.walk(folder):
        if Path(path) not in made or set(files) - (_OURS if Path(path) == conf else set()):
            return False
    return True


def take_away(journal: Journal, conf: Path) -> Iterator[str]:
    """Removes the journal, and its folders unless other files are in them. Yields a line for each
    folder. The journal's other steps must be undone already."""
    made = [Path(step.path) for step in journal.steps if isinstance(step, MakeFolder)]
    going = [folder for folder in made if _holds_only(folder, made, conf)]
    if going:
        hidden = _hidden(going[0])
        # A set-up that finds no folder locks its parent, and sweeps there. It waits for no other
        # lock meanwhile.
        with only_one(lambda: hidden.parent):
            os.rename(going[0], hidden)
            sync_folder(hidden.parent)
            try:
                _clear(hidden)
            except OSError:  # a new file appeared in the folder at this moment
                os.rename(hidden, going[0])
                going = []
    journal.discard()
    for folder in reversed(made):
        if folder in going:
            yield f"removed the folder {folder}"
        else:
            yield f"left the folder {folder}: it is not empty"
