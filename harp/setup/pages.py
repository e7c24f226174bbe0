# SPDX-License-Identifier: Apache-2.0
"""Hugepages: 2 MiB ones while the kernel runs, 1 GiB ones from the next boot on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Optional

from harp.setup import sysfs
from harp.setup.steps import Step, StepError

SMALL_KB, LARGE_KB = 2048, 1048576
MIB_PER_NIC = 256  # what a process takes for one
_BASE_MIB, _QUEUE_MIB = 32, 48  # as in dpdk_glue/dpdk/ethdev_device.c
PLAIN_MIB = 1024  # of ordinary pages, where there are no hugepages: as in dpdk_glue/dpdk/eal.c


def least_mib(instances: int) -> int:
    """MiB without which a process goes without hugepages, or not at all."""
    return _BASE_MIB + _QUEUE_MIB * instances


def gibibytes(cards: int) -> int:
    """GiB of 1 GiB pages for a host of so many GPUs: what a job of one rank a card
    takes, and ten for the host."""
    return 50 if cards == 8 else cards * 5 + 10


def pool(size_kb: int, node: int) -> str:
    """The kernel's folder of pages of a size, of a NUMA node or (-1) of all."""
    name = f"hugepages/hugepages-{size_kb}kB"
    of_node = f"sys/devices/system/node/node{node}/{name}"
    if node >= 0 and sysfs.at(of_node).is_dir():
        return of_node
    return f"sys/kernel/mm/{name}"


def total(folder: str) -> int:
    """How many pages a pool has."""
    return sysfs.number(sysfs.at(folder) / "nr_hugepages")


def free(folder: str) -> int:
    """How many of them nobody uses."""
    return sysfs.number(sysfs.at(folder) / "free_hugepages")


@dataclass
class Pages(Step):
    """2 MiB pages: `count` in the pool `folder`, which had `before`, of which `others`
    were in use, in the boot of that name."""

    kind: ClassVar[str] = "pages"
    folder: str
    count: int
    before: int
    others: int
    boot: str

    @property
    def target(self) -> str:
        return f"/{self.folder}"

    @property
    def _file(self) -> Path:
        return sysfs.at(self.folder) / "nr_hugepages"

    def describe(self) -> str:
        return f"echo {self.count} > {self.target}/nr_hugepages (it was {self.before})"

    def in_place(self) -> bool:
        return total(self.folder) >= self.count

    def do(self) -> None:
        self._file.write_text(str(self.count))
        if not self.in_place():
            # Free memory may lie in pieces smaller than a page.
            sysfs.at("proc/sys/vm/compact_memory").write_text("1")
            self._file.write_text(str(self.count))
        if not self.in_place():
            raise StepError(
                f"the kernel found memory for {total(self.folder) - self.before} of "
                f"{self.count - self.before} hugepages of 2 MiB; end programs that take memory, "
                "ask for fewer with --hugepages MIB, or for pages from the next boot on with "
                "--pages 1G"
            )

    def follow(self, earlier: Step) -> None:
        assert isinstance(earlier, Pages)
        if earlier.boot == self.boot:
            self.before = earlier.before

    def undo(self) -> str:
        now = total(self.folder)
        if now <= self.before or sysfs.boot() != self.boot:
            return ""
        if now > self.count:
            return f"left {now} hugepages in {self.target}: somebody has added to them since"
        self._file.write_text(str(self.before))
        return f"set {self.target}/nr_hugepages to {self.before} again"


def small(folder: str, wanted: int, earlier: Optional[Pages]) -> Optional[Pages]:
    """The step after which the pool has so many pages for HARP, beside those that
    others used when set-up first looked (`earlier`); None if it has them."""
    boot = sysfs.boot()
    now = total(folder)
    if earlier is not None and earlier.boot == boot:
        others = earlier.others
    else:
        others = now - free(folder)
    count = others + wanted
    return Pages(folder, count, now, others, boot) if count > now else None
