# SPDX-License-Identifier: Apache-2.0
"""Steps that tell the kernel something: its modules, and values in /sys."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from harp.setup import sysfs
from harp.setup.steps import Step, StepError


def run_tool(*command: str) -> tuple[bool, str]:
    """Runs a tool of the system: whether it ended well, and what it wrote. Raises
    StepError if it is not there, or takes over two minutes."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        raise StepError(
            f"the command {command[0]} is missing; install the package that has it "
            "(kmod for modprobe)"
        ) from None
    except subprocess.TimeoutExpired:
        raise StepError(f"{' '.join(command)} did not end within two minutes") from None
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def has_module(name: str) -> bool:
    """Whether this kernel has the module, loaded, built in, or on disk."""
    return is_loaded(name) or run_tool("modprobe", "--dry-run", "--quiet", name)[0]


def is_loaded(name: str) -> bool:
    """Whether the module is loaded or built in."""
    drivers = sysfs.at("sys/bus/pci/drivers")
    return (sysfs.at("sys/module") / name.replace("-", "_")).is_dir() or (drivers / name).is_dir()


def _needs(name: str) -> list[str]:
    """The modules that have to be loaded for one that is not built in, itself left out,
    in their order."""
    _, said = run_tool("modprobe", "--show-depends", name)
    files = [line.split()[1] for line in said.splitlines() if line.startswith("insmod ")]
    return [Path(file).name.partition(".")[0].replace("-", "_") for file in files][:-1]


@dataclass
class LoadModule(Step):
    """A module of the kernel's; `brings` are those that come with it. Undone if nobody
    uses them then."""

    kind: ClassVar[str] = "module"
    name: str
    brings: list[str]

    @classmethod
    def of(cls, name: str) -> LoadModule:
        """The step for a module as things are now."""
        return cls(name, [one for one in _needs(name) if not is_loaded(one)])

    @property
    def target(self) -> str:
        return self.name

    def describe(self) -> str:
        return f"modprobe {self.name}"

    def in_place(self) -> bool:
        return is_loaded(self.name)

    def do(self) -> None:
        well, said = run_tool("modprobe", self.name)
        if not well:
            raise StepError(
                f"modprobe {self.name} failed: {said}; the kernel's log (dmesg) may say why"
            )

    def follow(self, earlier: Step) -> None:
        assert isinstance(earlier, LoadModule)
        self.brings = earlier.brings

    def undo(self) -> str:
        said = ""
        if self.in_place():
            well, why = run_tool("modprobe", "--remove", self.name)
            said = f"unloaded {self.name}" if well else f"left {self.name} loaded: {why}"
        for name in reversed(self.brings):
            if is_loaded(name):
                run_tool("modprobe", "--remove", name)  # others may have come to use it
        return said


@dataclass
class SetValue(Step):
    """One of the kernel's values: `path` begins with sys/; `before` is what it said."""

    kind: ClassVar[str] = "value"
    path: str
    value: str
    before: str

    @property
    def target(self) -> str:
        return f"/{self.path}"

    @property
    def _file(self) -> Path:
        return sysfs.at(self.path)

    def describe(self) -> str:
        return f"echo {self.value} > {self.target}"

    def in_place(self) -> bool:
        return sysfs.text(self._file) == self.value

    def do(self) -> None:
        self._file.write_text(self.value)

    def follow(self, earlier: Step) -> None:
        assert isinstance(earlier, SetValue)
        self.before = earlier.before

    def undo(self) -> str:
        if not self._file.exists() or not self.in_place():
            return ""  # its module is gone, or somebody else has set it since
        self._file.write_text(self.before)
        return f"set {self.target} to {self.before} again"
