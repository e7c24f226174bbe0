# SPDX-License-Identifier: Apache-2.0
"""Steps that change the kernel: load modules, and set values in /sys."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from harp.setup import sysfs
from harp.setup.steps import Step, StepError


def run_tool(*command: str) -> tuple[bool, str]:
    """Runs a system tool. Returns whether it succeeded, and its output. Raises StepError if it is
    missing, or takes over two minutes."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        raise StepError(
            f"the command {command[0]} is missing; install its package (kmod for modprobe)"
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
    """The modules that modprobe loads before this one, in their order."""
    _, said = run_tool("modprobe", "--show-depends", name)
    files = [line.split()[1] for line in said.splitlines() if line.startswith("insmod ")]
    return [Path(file).name.partition(".")[0].replace("-", "_") for file in files][:-1]


@dataclass
class LoadModule(Step):
    """Loads a kernel module. `brings` are the modules loaded with it. Undo unloads those that are
    not in use."""

    kind: ClassVar[str] = "module"
    name: str
    brings: list[str]

    @classmethod
    def of(cls, name: str) -> LoadModule:
        """The step for a module; `brings` are the dependencies not loaded yet."""
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
            raise StepError(f"modprobe {self.name} failed: {said}; see the kernel's log (dmesg)")

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
                run_tool("modprobe", "--remove", name)  # fails if another module uses it now
        return said


@dataclass
class SetValue(Step):
    """Sets a value of the kernel. `path` begins with sys/; `before` is the old value."""

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
            return ""  # the module is gone, or the value was changed after set-up
        self._file.write_text(self.before)
        return f"set {self.target} to {self.before} again"
