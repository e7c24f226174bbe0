# SPDX-License-Identifier: Apache-2.0
"""Hugepages: 2 MiB pages at once, 1 GiB pages from the next boot on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Optional

from harp.setup import sysfs
from harp.setup.steps import Step, StepError

SMALL_KB, LARGE_KB = 2048, 1048576
MIB_PER_NIC = 256  # of hugepages that a process uses for one NIC
_BASE_MIB, _QUEUE_MIB = 32, 48  # as in dpdk_glue/dpdk/ethdev_device.c
PLAIN_MIB = 1024  # of ordinary pages, if there are no hugepages: as in dpdk_glue/dpdk/eal.c


def least_mib(instances: int) -> int:
    """The least MiB of hugepages that a process can use for a NIC. A process with fewer uses
    ordinary pages, or declines without an IOMMU."""
    return _BASE_MIB + _QUEUE_MIB * instances


def gibibytes(cards: int) -> int:
    """GiB of 1 GiB pages for a host with `cards` GPUs: 5 for each rank of a job with one rank a
    card, and 10 for the host."""
    return 50 if cards == 8 else cards * 5 + 10


def pool(size_kb: int, node: int) -> str:
    """The sysfs folder of a hugepage size, of one NUMA node or (-1) of all."""
    name = f"hugepages/hugepages-{size_kb}kB"
    of_node = f"sys/devices/system/node/node{node}/{name}"
    if node >= 0 and sysfs.at(of_node).is_dir():
        return of_node
    return f"sys/kernel/mm/{name}"


def total(folder: str) -> int:
    """The number of pages of a pool."""
    return sysfs.number(sysfs.at(folder) / "nr_hugepages")


def free(folder: str) -> int:
    """The number of free pages of a pool."""
    return sysfs.number(sysfs.at(folder) / "free_hugepages")


@dataclass
class Pages(Step):
    """Sets the pool `folder` to `count` pages of 2 MiB. It had `before` pages, `others` of them in
    use, in the boot with the id `boot`."""

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
            # Free memory may be fragmented into pieces smaller than 2 MiB.
            sysfs.at("proc/sys/vm/compact_memory").write_text("1")
            self._file.write_text(str(self.count))
        if not self.in_place():
            raise StepError(
                f"the kernel found memory for {total(self.folder) - self.before} of "
                f"{self.count - self.before} hugepages of 2 MiB; end programs that use memory, "
                "lower --hugepages MIB, or reserve pages for the next boot with --pages 1G"
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
            return f"left {now} hugepages in {self.target}: more were added after set-up"
        self._file.write_text(str(self.before))
        return f"set {self.target}/nr_hugepages to {self.before} again"


def small(folder: str, wanted: int, earlier: Optional[Pages]) -> Optional[Pages]:
    """The step that gives the pool `wanted` pages for HARP; None if it has them. Pages of other
    programs are added; `earlier`, the step of an earlier run in this boot, knows their number."""
    boot = sysfs.boot()
    now = total(folder)
    if earlier is not None and earlier.boot == boot:
        others = earlier.others
    else:
        others = now - free(folder)
    count = others + wanted
    return Pages(folder, count, now, others, boot) if count > now else None
