# SPDX-License-Identifier: Apache-2.0
"""The steps of set-up: changes to a host that can be undone.

A step can tell whether it is in place, make its change, and undo it. Making and undoing may be
repeated after a crash. A step records the old state before it makes its change.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Optional

from harp.observe import foreign
from harp.setup import host, leftovers
from harp.setup.folders import FolderError, make_folder


class StepError(RuntimeError):
    """A step could not be made or undone. The text says what to do."""


class RefusedError(StepError):
    """A step was refused before it changed anything."""


def sync_folder(folder: Path) -> None:
    """Makes a rename or removal in a folder survive a crash of the machine."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def unfinished(path: Path) -> Path:
    """The temporary file that write_file renames to `path`."""
    return path.with_name(f".{path.name}.new")


def read_file(path: Path) -> str:
    """The text of a file of any bytes: `write_file` writes the same bytes. Raises OSError."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Replaces a file atomically, by a rename. The new file is on disk when this returns."""
    new = unfinished(path)
    new.unlink(missing_ok=True)  # left by a killed write, or a link of another user
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(text.encode("utf-8", "surrogateescape"))
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync_folder(path.parent)


def discard_unfinished(path: Path) -> None:
    """Removes the temporary file that a killed write_file left."""
    unfinished(path).unlink(missing_ok=True)


def remove_file(path: Path) -> None:
    """Removes a file if it exists. The removal is on disk when this returns."""
    discard_unfinished(path)
    if path.exists():
        path.unlink()
        sync_folder(path.parent)


def is_claimed(path: Path) -> bool:
    """Whether a running process holds a lock on the file (flock)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return leftovers.is_locked(fd)
    finally:
        os.close(fd)


def _read(path: Path) -> Optional[str]:
    try:
        return read_file(path)
    except FileNotFoundError:
        return None


def _refuse_if_claimed(path: Path) -> None:
    if is_claimed(path):
        raise RefusedError(f"a running job uses {path}; try again when the job has ended")


@dataclass
class Step(ABC):
    """The fields must fit into JSON: a step is a row of the journal."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def target(self) -> str:
        """The object that the step changes. Two steps of one kind and target are the same."""

    @abstractmethod
    def describe(self) -> str:
        """The planned change, in one line."""

    @abstractmethod
    def in_place(self) -> bool:
        """Whether there is nothing to do."""

    def strayed(self) -> str:
        """The state of a step that was made and is not in place now."""
        return "missing"

    @abstractmethod
    def do(self) -> None:
        """Makes the change. Raises StepError, HostError or OSError."""

    @abstractmethod
    def undo(self) -> str:
        """Undoes the change, whether or not it was made. Returns a line that says what it did, ""
        for nothing. Raises StepError, HostError or OSError."""

    def is_undone(self) -> bool:
        """Whether undo would change nothing. False if only undo can tell."""
        return False

    def follow(self, earlier: Step) -> None:  # noqa: B027 (optional for subclasses)
        """Takes over the recorded old state of an earlier step on the same target."""

    def row(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}


@dataclass
class MakeFolder(Step):
    """A folder; `mode` are its permission bits. Undo removes it only if it is empty, or
    holds nothing but files of ended processes, as the run folder does."""

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
            leftovers.remove(self.path)
            os.rmdir(self.path)
        except FileNotFoundError:
            return ""
        except OSError:
            return f"left the folder {self.path}: it is not empty"
        return f"removed the folder {self.path}"


@dataclass
class FolderMode(Step):
    """More permission bits of a folder that exists. `before` are its bits before set-up."""

    kind: ClassVar[str] = "mode"
    path: str
    mode: int
    before: int

    @property
    def target(self) -> str:
        return self.path

    def describe(self) -> str:
        return f"chmod {self.mode:o} {self.path} (now {self.before:o})"

    def _now(self) -> Optional[int]:
        try:
            return stat.S_IMODE(os.lstat(self.path).st_mode)
        except OSError:
            return None

    def in_place(self) -> bool:
        return self._now() == self.mode

    def do(self) -> None:
        try:
            make_folder(self.path, self.mode)
        except FolderError as wrong:
            raise StepError(str(wrong)) from wrong

    def follow(self, earlier: Step) -> None:
        assert isinstance(earlier, FolderMode)
        self.before = earlier.before

    def is_undone(self) -> bool:
        return not self.in_place()

    def undo(self) -> str:
        if self.is_undone():
            return ""
        try:
            make_folder(self.path, self.before)
        except FolderError as wrong:
            raise StepError(str(wrong)) from wrong
        return f"chmod {self.before:o} {self.path}"


@dataclass
class WriteFile(Step):
    """A ztcp*.conf. `before` is its text before the first set-up, None if there was no file;
    `earlier` are the texts that set-up wrote since."""

    kind: ClassVar[str] = "file"
    path: str
    text: str
    before: Optional[str]
    earlier: list[str] = field(default_factory=list)

    @property
    def target(self) -> str:
        return self.path

    def describe(self) -> str:
        raw = self.text.encode("utf-8", "surrogateescape").splitlines()
        lines = [foreign.text(line) for line in raw if line and not line.startswith(b"#")]
        return f"{'change' if self.before is not None else 'write'} {self.path}: {', '.join(lines)}"

    def in_place(self) -> bool:
        return _read(Path(self.path)) == self.text

    def strayed(self) -> str:
        if Path(self.path).exists():
            return "edited"
        return "missing" if self.before is None else "removed"

    def is_undone(self) -> bool:
        return self.before is None and not Path(self.path).exists()

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
            said = f"kept the file edited by hand as {kept}; "
        if self.before is None:
            remove_file(path)
            return f"{said}removed {path}"
        write_file(path, self.before)
        return f"{said}restored {path}"


@dataclass
class Blackhole(Step):
    """A route that makes the kernel drop the packets for HARP's own address. The kernel of
    a host that forwards would otherwise forward them or answer with ICMP. `address` has no
    prefix."""

    kind: ClassVar[str] = "blackhole"
    address: str

    @property
    def target(self) -> str:
        return self.address

    def describe(self) -> str:
        return (
            f"ip route add blackhole {self.address}/32 "
            "(this host forwards; the kernel must drop HARP's packets)"
        )

    def in_place(self) -> bool:
        return host.has_blackhole(self.address)

    def do(self) -> None:
        host.ip("route", "add", "blackhole", f"{self.address}/32")

    def is_undone(self) -> bool:
        return not self.in_place()

    def undo(self) -> str:
        if self.is_undone():
            return ""
        host.ip("route", "del", "blackhole", f"{self.address}/32")
        return f"removed the blackhole route for {self.address}"
