# SPDX-License-Identifier: Apache-2.0
"""1 GiB pages on the kernel's command line, added by the boot loader's own tools."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import ClassVar

from harp.setup import sysfs
from harp.setup.kernel import run_tool
from harp.setup.steps import Step, StepError, discard_unfinished, remove_file, write_file

_DROP_INS = "etc/default/grub.d"
_DROP_IN = f"{_DROP_INS}/harp.cfg"
_MENUS = ("boot/grub/grub.cfg", "boot/grub2/grub.cfg")


def boot_args(pages: int) -> str:
    """The kernel options that reserve `pages` pages of 1 GiB."""
    return f"default_hugepagesz=1G hugepagesz=1G hugepages={pages}"


def told() -> int:
    """The number of 1 GiB pages that this boot's command line reserves."""
    line = sysfs.text(sysfs.at("proc/cmdline"))
    found = re.search(r"\bhugepagesz=1GB? (?:.* )?hugepages=(\d+)", line)
    return int(found.group(1)) if found else 0


def tool() -> str:
    """The tool that changes the command line: "update-grub" (Debian, Ubuntu), "grubby" (CentOS
    and related), or "" for neither."""
    if sysfs.at("etc/default/grub").is_file() and shutil.which("update-grub"):
        return "update-grub"
    return "grubby" if shutil.which("grubby") else ""


@dataclass
class BootPages(Step):
    """Reserves `pages` pages of 1 GiB on the command line with `tool`. `stale` is the number that
    an earlier set-up put there and that must be removed, 0 for none."""

    kind: ClassVar[str] = "boot"
    pages: int
    tool: str
    stale: int = 0

    @property
    def target(self) -> str:
        return "the kernel's command line"

    def describe(self) -> str:
        return f"add {boot_args(self.pages)} to the kernel's command line by {self.tool}"

    def in_place(self) -> bool:
        wanted = boot_args(self.pages)
        if self.tool == "grubby":
            well, said = run_tool("grubby", "--info=ALL")
            return well and wanted in said
        return any(wanted in sysfs.text(sysfs.at(menu)) for menu in _MENUS)

    def _tell(self, *command: str) -> None:
        well, said = run_tool(*command)
        if not well:
            raise StepError(f"{' '.join(command)} failed: {said}")

    def do(self) -> None:
        if self.tool == "grubby":
            if self.stale:
                self._tell(
                    "grubby", "--update-kernel=ALL", f"--remove-args={boot_args(self.stale)}"
                )
            self._tell("grubby", "--update-kernel=ALL", f"--args={boot_args(self.pages)}")
            return
        path = sysfs.at(_DROP_IN)
        path.parent.mkdir(exist_ok=True)
        write_file(
            path,
            "# HARP: 1 GiB pages; harp setup undo removes this file\n"
            f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {boot_args(self.pages)}"\n',
        )
        self._tell("update-grub")

    def follow(self, earlier: Step) -> None:
        assert isinstance(earlier, BootPages)
        self.stale = 0 if earlier.pages == self.pages else earlier.pages

    def undo(self) -> str:
        if self.tool == "grubby":
            self._tell("grubby", "--update-kernel=ALL", f"--remove-args={boot_args(self.pages)}")
        else:
            path = sysfs.at(_DROP_IN)
            if not path.exists() and not self.in_place():
                discard_unfinished(path)
                return ""
            remove_file(path)
            self._tell("update-grub")
        return "removed the 1 GiB pages from the kernel's command line; the next boot frees them"
