# SPDX-License-Identifier: Apache-2.0
"""The changes that set-up makes to a host, each of which can be undone.

A step knows whether it is in place, does itself, and takes itself back; the last
two may be repeated after a crash. What undoing needs is recorded before the
change is made.
"""

from __future__ import annotations

import fcntl
import os
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Optional

from harp.setup import host
from harp.setup.folders import FolderError, make_folder


class StepError(RuntimeError):
    """A step cannot be made or taken back. The text says how to mend it."""


def sync_folder(folder: Path) -> None:
    """Makes a rename or removal in a folder survive a crash of the machine."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def unfinished(path: Path) -> Path:
    """What write_file writes before the move."""
    return path.with_name(f".{path.name}.new")


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Replaces a file by a new one in a single move, on disk when this returns."""
    new = unfinished(path)
    new.unlink(missing_ok=True)  # what a write left that was killed, or somebody's link
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync_folder(path.parent)


def discard_unfinished(path: Path) -> None:
    """Removes what a write_file of the path has left if it was killed."""
    unfinished(path).unlink(missing_ok=True)


def remove_file(path: Path) -> None:
    """Removes a file that may be there, on disk when this returns."""
    discard_unfinished(path)
    if path.exists():
        path.unlink()
        sync_folder(path.parent)


def is_claimed(path: Path) -> bool:
    """Whether a running process holds a claim on the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _read(path: Path) -> Optional[str]:
    try:
        return path.read_text(errors="surrogateescape")
    except FileNotFoundError:
        return None


def _refuse_if_claimed(path: Path) -> None:
    if is_claimed(path):
        raise StepError(f"{path} is claimed by a running job; try again when the job has ended")


@dataclass
class Step(ABC):
    """Fields are what JSON knows: a step is a row of the journal."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def target(self) -> str:
        """What the step is about; two steps of a kind and target are the same."""

    @abstractmethod
    def describe(self) -> str:
        """One line that says what will be done."""

    @abstractmethod
    def in_place(self) -> bool:
        """Whether there is nothing to do."""

    def strayed(self) -> str:
        """What to call it where it was made and is not in place now."""
        return "missing"

    @abstractmethod
    def do(self) -> None:
        """Makes the change. Raises StepError, HostError or OSError."""

    @abstractmethod
    def undo(self) -> str:
        """Takes the change back, whether or not it was made; says what it did, ""
        for nothing. Raises StepError, HostError or OSError."""

    def follow(self, earlier: Step) -> None:  # noqa: B027 (most need nothing)
        """Takes over what undoing needs from an earlier step on the same target."""

    def row(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}


@dataclass
class MakeFolder(Step):
    """A folder; `mode` are its permission bits. Undone if it is empty then."""

    kind: ClassVar[str] = "folder"
    path: str
    mode: int

    @property
    def target(self) -> str:
        return self.path

    def describe(self) -> str:
        return f"make the folder {self.path}"

    def in_place(self) -> bool:
        return Path(self.path).is_dir()

    def do(self) -> None:
        try:
            make_folder(self.path, self.mode)
        except FolderError as wrong:
            raise StepError(str(wrong)) from wrong

    def undo(self) -> str:
        try:
            os.rmdir(self.path)
        except FileNotFoundError:
            return ""
        except OSError:
            return f"left the folder {self.path}: it is not empty"
        return f"removed the folder {self.path}"


@dataclass
class WriteFile(Step):
    """A ztcp*.conf; `before` is what it held before the first set-up, None if it was
    not there; `earlier` are the texts of set-ups since."""

    kind: ClassVar[str] = "file"
    path: str
    text: str
    before: Optional[str]
    earlier: list[str] = field(default_factory=list)

    @property
    def target(self) -> str:
        return self.path

    def describe(self) -> str:
        lines = [line for line in self.text.splitlines() if line and not line.startswith("#")]
        return f"{'change' if self.before is not None else 'write'} {self.path}: {', '.join(lines)}"

    def in_place(self) -> bool:
        return _read(Path(self.path)) == self.text

    def strayed(self) -> str:
        return "edited" if Path(self.path).exists() else "missing"

    def do(self) -> None:
        _refuse_if_claimed(Path(self.path))
        write_file(Path(self.path), self.text)

    def follow(self, earlier: Step) -> None:
        assert isinstance(earlier, WriteFile)
        self.before = earlier.before
        self.earlier = [*earlier.earlier, earlier.text]

    def undo(self) -> str:
        path = Path(self.path)
        now = _read(path)
        if now == self.before:
            discard_unfinished(path)
            return ""
        _refuse_if_claimed(path)
        said = ""
        if now is not None and now not in [self.text, *self.earlier]:
            kept = path.with_name(path.name + ".edited")
            write_file(kept, now)
            said = f"kept what was edited by hand as {kept}; "
        if self.before is None:
            remove_file(path)
            return f"{said}removed {path}"
        write_file(path, self.before)
        return f"{said}restored {path}"


@dataclass
class Blackhole(Step):
    """A route that makes the kernel drop what arrives for HARP's own address:
    without it, a host that forwards would send the frames on, or answer with
    ICMP, beside HARP. `address` has no prefix."""

    kind: ClassVar[str] = "blackhole"
    address: str

    @property
    def target(self) -> str:
        return self.address

    def describe(self) -> str:
        return (
            f"ip route add blackhole {self.address}/32 "
            "(this host forwards: the kernel must leave HARP's frames alone)"
        )

    def in_place(self) -> bool:
        return host.has_blackhole(self.address)

    def do(self) -> None:
        host.ip("route", "add", "blackhole", f"{self.address}/32")

    def undo(self) -> str:
        if not self.in_place():
            return ""
        host.ip("route", "del", "blackhole", f"{self.address}/32")
        return f"removed the blackhole route for {self.address}"
