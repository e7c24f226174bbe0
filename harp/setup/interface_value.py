# SPDX-License-Identifier: Apache-2.0
"""A step that sets a number of an interface, until the next boot."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Optional

from harp.setup import sysfs
from harp.setup.steps import Step


@dataclass
class InterfaceValue(Step):
    """Sets `key` of an interface to `value`. `before` is the old value, and `boot` the boot id of
    that value; another boot makes it void."""

    interface: str
    key: str
    value: int
    before: int
    boot: str

    @abstractmethod
    def now(self) -> Optional[int]:
        """The present value; None: the interface does not have it."""

    @abstractmethod
    def make(self, value: int) -> None:
        """Sets the value. Raises StepError or OSError."""

    def follow(self, earlier: Step) -> None:
        assert isinstance(earlier, type(self))
        if earlier.boot == self.boot:
            self.before = earlier.before

    def is_undone(self) -> bool:
        """A reboot, the end of the interface, or a later change has undone the step."""
        return sysfs.boot() != self.boot or self.now() != self.value

    def undo(self) -> str:
        if self.is_undone():
            return ""
        self.make(self.before)
        return f"set {self.target} to {self.before} again"
