# SPDX-License-Identifier: Apache-2.0
"""The folder of the journal. It comes by one rename, with the journal in it, and goes by one: a
kill at any moment leaves nothing that undo does not know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harp.setup.journal import NAME, Journal, only_one
from harp.setup.steps import MakeFolder, Step, StepError, sync_folder, unfinished

_OURS = {NAME, unfinished(Path(NAME)).name}


def missing_folders(path: Path) -> list[Path]:
    """The path and those above it that are not there, the topmost first."""
    missing: list[Path] = []
    while not path.is_dir():
        missing.insert(0, path)
        path = path.parent
    return missing


def is_home(step: Step, conf: Path) -> bool:
    """Whether the journal lies in the folder that the step makes, or below it."""
    return isinstance(step, MakeFolder) and Path(step.path) in (conf, *conf.parents)


def _hidden(folder: Path) -> Path:
    """What a folder is called while it is made, or taken away."""
    return folder.with_name(f".{folder.name}.harp-setup")


def _clear(folder: Path) -> None:
    """Removes a folder that holds a journal and folders, at most. Raises OSError if there is more
    in it."""
    for path, _, files in os.walk(folder, topdown=False):
        for name in _OURS.intersection(files):
            os.unlink(Path(path) / name)
        os.rmdir(path)


def sweep(conf: Path) -> Iterator[str]:
    """Removes what a kill has left of a folder that was made or taken away; says what. Raises
    StepError."""
    for folder in (conf, *list(conf.parents)[:-1]):
        hidden = _hidden(folder)
        if not hidden.is_dir():
            continue
        try:
            _clear(hidden)
        except OSError as failure:
            raise StepError(f"{failure}; look at what {hidden} holds, and remove it") from None
        yield f"removed {hidden}, which a crash had left"


def _make(conf: Path) -> list[Step]:
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
    os.rename(hidden, top)
    sync_folder(top.parent)
    return made


@contextmanager
def locked(conf: Path) -> Iterator[None]:
    """Keeps a second set-up out, whether or not the folder is there. Raises StepError if one
    runs."""
    missing = missing_folders(conf)
    place = missing[0].parent if missing else conf
    with only_one(place):
        if missing_folders(conf) != missing:
            raise StepError(f"another harp setup works on {conf}; wait until it ends")
        yield


@contextmanager
def opened(conf: Path) -> Iterator[list[Step]]:
    """Locks the folder, and makes it if it is missing; the steps that were made, which the
    journal holds already. Raises StepError or OSError."""
    with locked(conf), ExitStack() as stack:
        for _ in sweep(conf):
            pass
        if conf.is_dir():
            yield []
            return
        made = _make(conf)
        stack.enter_context(only_one(conf))
        yield made


def _holds_only(folder: Path, made: list[Path], conf: Path) -> bool:
    """Whether a folder holds no more than the journal and other folders of set-up's."""
    for path, _, files in os.walk(folder):
        if Path(path) not in made or set(files) - (_OURS if Path(path) == conf else set()):
            return False
    return True


def take_away(journal: Journal, conf: Path) -> Iterator[str]:
    """Ends a journal of which only the folders are left that it lies in, and removes these as far
    as they are empty then; says what was done."""
    made = [Path(step.path) for step in journal.steps if isinstance(step, MakeFolder)]
    going = [folder for folder in made if _holds_only(folder, made, conf)]
    if going:
        hidden = _hidden(going[0])
        os.rename(going[0], hidden)
        sync_folder(hidden.parent)
        try:
            _clear(hidden)
        except OSError:  # somebody put something there at this moment
            os.rename(hidden, going[0])
            going = []
    journal.discard()
    for folder in reversed(made):
        if folder in going:
            yield f"removed the folder {folder}"
        else:
            yield f"left the folder {folder}: it is not empty"
