# SPDX-License-Identifier: Apache-2.0
"""Finds the NICs that HARP may take over, and the driver for each. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from harp.setup import netstate, pci, sysfs, use
from harp.setup.kernel import has_module, run_tool

VFIO, UIO = "vfio-pci", "uio_pci_generic"
DRIVERS = (VFIO, UIO)
# The kernel drivers that let a process drive a device.
GIVEN = (*DRIVERS, "igb_uio")
# VFIO accepts an IOMMU group whose devices all have one of these drivers. The same list is in
# dpdk_glue/dpdk/ethdev_device.c.
ASIDE = ("", VFIO, "pci-stub")
# The kernel drivers of the NICs that HARP's DPDK can drive.
KNOWN = ("virtio-pci", "ena", "gve", "iavf", "ice", "i40e", "ixgbe", "ixgbevf", "vmxnet3")

# The name of a DPDK software device begins with its driver's name: the drivers of
# dpdk_glue/meson.build and their aliases.
SOFTWARE = ("eth_vhost", "net_memif", "net_vhost", "net_virtio_user", "virtio_user")

_NOIOMMU = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode"


@dataclass(frozen=True)
class Nic:
    """A NIC on the PCI bus. `settings` are its interface's, None without an interface in this
    network namespace; `refusal` says why HARP never takes the NIC over, "" if it may; `uses` lists
    its uses."""

    device: pci.PciDevice
    settings: Optional[netstate.Settings] = None
    refusal: str = ""
    uses: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its interface; "" for none."""
        return self.settings.name if self.settings else ""

    @property
    def addresses(self) -> list[str]:
        return self.settings.ipv4 if self.settings else []

    @property
    def is_free(self) -> bool:
        """Whether set-up may take it over without its name: HARP can drive it, it is not in use,
        and it has the address that HARP needs."""
        return bool(self.addresses) and not self.refusal and not self.uses

    def _state(self) -> str:
        if self.refusal or self.uses:
            return self.refusal or "; ".join(self.uses)
        if self.device.driver in GIVEN:
            return "bound to a user-space driver"
        return "free" if self.is_free else "not in use; HARP needs an --address for it"

    def describe(self) -> str:
        """One line of text."""
        parts = [
            self.name or "no interface",
            self.device.driver or "no driver",
            ", ".join(self.addresses) or "no IPv4 address",
        ]
        return f"{self.device.id}  {', '.join(parts)}: {self._state()}"

    def row(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "pci_id": self.device.id,
            "interface": self.name,
            "driver": self.device.driver,
            "addresses": self.addresses,
            "iommu_group": self.device.group,
            "never": self.refusal,
            "uses": self.uses,
            "free": self.is_free,
        }


def look(device: pci.PciDevice, taken_before: bool = False) -> Nic:
    """The NIC of a PCI device, with its uses and the reasons against taking it over.
    `taken_before`: an earlier set-up took it."""
    if device.driver in ("", *GIVEN):
        return Nic(device)
    if not device.interfaces:
        return Nic(
            device,
            refusal="its interface is not in this network namespace: a container has it, or it "
            "is not Ethernet",
        )
    settings = netstate.settings(device.interfaces[0])
    if device.driver not in KNOWN:
        return Nic(
            device,
            settings,
            f"HARP has no driver for a NIC of {device.driver}; share it with the kernel as "
            f"packet:{settings.name}",
        )
    return Nic(device, settings, use.never(settings.name, taken_before), use.uses(settings))


def all_nics() -> list[Nic]:
    """Every NIC on the PCI bus."""
    return [look(device) for device in pci.devices() if device.is_nic]


def is_software(place: str) -> bool:
    """Whether a dpdk device of that name is a software device, without a NIC."""
    return place.startswith(SOFTWARE)


# -- drivers


def has_iommu(device: pci.PciDevice) -> bool:
    """Whether an IOMMU restricts the device to the memory mapped for it. In no-IOMMU mode, vfio
    makes a group of its own with a name that says so."""
    name = sysfs.at("sys/kernel/iommu_groups") / device.group / "name"
    return bool(device.group) and sysfs.text(name) != "vfio-noiommu"


def in_the_way(group: str) -> list[pci.PciDevice]:
    """The group's devices whose drivers keep VFIO from it: VFIO needs the whole group."""
    return [one for one in pci.group_members(group) if one.driver not in ASIDE]


def noiommu_value() -> str:
    """The path of vfio's no-IOMMU switch, for sysfs.at(); "" for a kernel without that mode."""
    if sysfs.at(_NOIOMMU).exists():
        return _NOIOMMU
    well, said = run_tool("modinfo", "--field", "parm", "vfio")
    return _NOIOMMU if well and "enable_unsafe_noiommu_mode" in said else ""


def choose_driver(device: pci.PciDevice, wanted: Optional[str]) -> str:
    """The driver for a device: the wanted one, or the safest that works here; "" if none does.
    Raises ValueError if the wanted one cannot work."""
    vfio = has_module(VFIO) and (has_iommu(device) or noiommu_value())
    if wanted == VFIO and not vfio:
        raise ValueError(
            "vfio-pci needs an IOMMU, or a kernel with vfio's no-IOMMU mode, and this host has "
            "neither; enable the IOMMU (firmware; intel_iommu=on), or use --driver uio_pci_generic"
        )
    if wanted == UIO and has_iommu(device):
        raise ValueError("uio_pci_generic cannot map memory behind an IOMMU; use --driver vfio-pci")
    if wanted:
        return wanted
    if vfio:
        return VFIO
    return UIO if has_module(UIO) else ""
