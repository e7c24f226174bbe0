# SPDX-License-Identifier: Apache-2.0
"""PCI devices in sysfs: NICs, GPUs, drivers, IOMMU groups, distances. Changes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from harp.setup import sysfs

ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

_NETWORK, _DISPLAY, _BRIDGE = 0x02, 0x03, 0x06  # base classes
_NVIDIA = 0x10DE


@dataclass(frozen=True)
class PciDevice:
    """`folder` is its real path in sysfs, which shows its place in the PCI tree; `driver` is the
    kernel driver, "" for none; `interfaces` are those of this network namespace; `group` is its
    IOMMU group, "" without an IOMMU; `node` is its NUMA node, -1 for none."""

    id: str
    folder: Path
    vendor: int
    base_class: int
    driver: str
    interfaces: tuple[str, ...]
    group: str
    node: int

    @property
    def is_nic(self) -> bool:
        return self.base_class == _NETWORK

    @property
    def is_gpu(self) -> bool:
        return self.base_class == _DISPLAY and self.vendor == _NVIDIA

    @property
    def is_bridge(self) -> bool:
        return self.base_class == _BRIDGE


def full_id(text: str) -> str:
    """A PCI id with its domain, which `text` may leave out ("3b:00.0"); "" for another text."""
    full = text.lower() if text.count(":") == 2 else f"0000:{text.lower()}"
    return full if ID.fullmatch(full) else ""


def link_of(pci_id: str) -> Path:
    """The device's folder in sysfs, with its control files."""
    return sysfs.at("sys/bus/pci/devices") / pci_id


def driver_of(pci_id: str) -> str:
    """The kernel's driver of the device; "" for none."""
    return sysfs.link(link_of(pci_id) / "driver")


def interfaces_of(pci_id: str) -> list[str]:
    """The device's interfaces in this network namespace, also behind virtio."""
    folder = link_of(pci_id)
    found = sysfs.names(folder / "net")
    for child in sysfs.names(folder):
        if child.startswith("virtio"):
            found += sysfs.names(folder / child / "net")
    return found


def device(pci_id: str) -> PciDevice | None:
    """The device of that id (0000:3b:00.0); None if there is none."""
    link = link_of(pci_id)
    if not ID.fullmatch(pci_id) or not link.exists():
        return None
    return PciDevice(
        id=pci_id,
        folder=link.resolve(),
        vendor=sysfs.number(link / "vendor"),
        base_class=sysfs.number(link / "class") >> 16,
        driver=driver_of(pci_id),
        interfaces=tuple(interfaces_of(pci_id)),
        group=sysfs.link(link / "iommu_group"),
        node=sysfs.number(link / "numa_node", -1),
    )


def devices() -> list[PciDevice]:
    """All PCI devices, sorted by id."""
    found = (device(name) for name in sysfs.names(sysfs.at("sys/bus/pci/devices")))
    return [one for one in found if one]


def of_interface(name: str) -> PciDevice | None:
    """The PCI device behind an interface; None for virtual ones."""
    place = (sysfs.at("sys/class/net") / name / "device").resolve()
    for folder in (place, *place.parents):
        if ID.fullmatch(folder.name):
            return device(folder.name)
    return None


def group_members(group: str) -> list[PciDevice]:
    """The devices of an IOMMU group, without bridges. VFIO uses a group only as a whole."""
    folder = sysfs.at("sys/kernel/iommu_groups") / group / "devices"
    found = (device(name) for name in sysfs.names(folder))
    return [one for one in found if one and not one.is_bridge]


def distance(one: PciDevice, other: PciDevice) -> int:
    """The distance in the PCI tree, in steps. Devices below different root complexes are further
    apart than any two below one."""
    mine, theirs = one.folder.parts, other.folder.parts
    shared = 0
    while shared < min(len(mine), len(theirs)) and mine[shared] == theirs[shared]:
        shared += 1
    steps = len(mine) + len(theirs) - 2 * shared
    bus = next((i for i, part in enumerate(mine) if part.startswith("pci")), 0)
    if shared > bus:
        return steps
    return steps + (100 if one.node == other.node else 200)


def nearest_gpus(nics: list[PciDevice], gpus: list[PciDevice]) -> dict[str, str]:
    """A GPU for each NIC, by ids: the nearest pairs first, each GPU once. Surplus NICs get
    none."""
    pairs = sorted((distance(nic, gpu), nic.id, gpu.id) for nic in nics for gpu in gpus)
    chosen: dict[str, str] = {}
    for _, nic, gpu in pairs:
        if nic not in chosen and gpu not in chosen.values():
            chosen[nic] = gpu
    return chosen
