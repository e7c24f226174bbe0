# SPDX-License-Identifier: Apache-2.0
"""Which NICs may be given away, and which driver gives them to HARP. Reads only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from harp.setup import netstate, pci, sysfs, use
from harp.setup.kernel import has_module, run_tool

VFIO, UIO = "vfio-pci", "uio_pci_generic"
DRIVERS = (VFIO, UIO)
# Those under which a user's process drives a device.
GIVEN = (*DRIVERS, "igb_uio")
# Whose devices do not keep VFIO from an IOMMU group: as in dpdk_glue/dpdk/ethdev_device.c.
ASIDE = ("", VFIO, "pci-stub")
# The kernel's drivers of the NICs that HARP can drive itself.
KNOWN = ("virtio-pci", "ena", "gve", "iavf", "ice", "i40e", "ixgbe", "ixgbevf", "vmxnet3")

# DPDK's devices in software begin with the name of a driver: those of dpdk_glue/meson.build,
# with their other names.
SOFTWARE = ("eth_vhost", "net_memif", "net_vhost", "net_virtio_user", "virtio_user")

_NOIOMMU = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode"


@dataclass(frozen=True)
class Nic:
    """A NIC on the PCI bus. `settings` are its interface's, None for none here; `refusal`
    says why it is never given away, "" if it may be; `uses` what it is in use for."""

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
        """Whether set-up gives it away without being told to: HARP can drive it,
        nobody uses it, and it has the address that HARP will need."""
        return bool(self.addresses) and not self.refusal and not self.uses

    def _state(self) -> str:
        if self.refusal or self.uses:
            return self.refusal or "; ".join(self.uses)
        if self.device.driver in GIVEN:
            return "given away"
        return "free" if self.is_free else "nobody uses it; HARP will need an --address"

    def describe(self) -> str:
        """One line for people."""
        words = [
            self.name or "no interface",
            self.device.driver or "no driver",
            ", ".join(self.addresses) or "no IPv4 address",
        ]
        return f"{self.device.id}  {', '.join(words)}: {self._state()}"

    def row(self) -> dict[str, Any]:
        """The same for programs."""
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


def look(device: pci.PciDevice) -> Nic:
    """What may be done with a NIC."""
    if device.driver in ("", *GIVEN):
        return Nic(device)
    if not device.interfaces:
        return Nic(
            device,
            refusal="its interface is not in this network namespace: a container "
            "has it, or it is not Ethernet",
        )
    settings = netstate.settings(device.interfaces[0])
    if device.driver not in KNOWN:
        return Nic(
            device,
            settings,
            f"HARP cannot drive a NIC of {device.driver}; share it with "
            f"the kernel as packet:{settings.name}",
        )
    return Nic(device, settings, use.never(settings.name), use.uses(settings))


def all_nics() -> list[Nic]:
    """Every NIC on the PCI bus."""
    return [look(device) for device in pci.devices() if device.is_nic]


def is_software(place: str) -> bool:
    """Whether a dpdk device of that name is made in software, without a NIC."""
    return place.startswith(SOFTWARE)


# -- drivers


def has_iommu(device: pci.PciDevice) -> bool:
    """Whether an IOMMU keeps the device to the memory that it is given. A group that
    vfio itself has made, without an IOMMU, says so in its name."""
    name = sysfs.at("sys/kernel/iommu_groups") / device.group / "name"
    return bool(device.group) and sysfs.text(name) != "vfio-noiommu"


def in_the_way(group: str) -> list[pci.PciDevice]:
    """The devices whose drivers keep VFIO from their IOMMU group: it is given away as a whole."""
    return [one for one in pci.group_members(group) if one.driver not in ASIDE]


def noiommu_value() -> str:
    """The kernel's value that lets vfio do without an IOMMU; "" where it has no such mode."""
    if sysfs.at(_NOIOMMU).exists():
        return _NOIOMMU
    well, said = run_tool("modinfo", "--field", "parm", "vfio")
    return _NOIOMMU if well and "enable_unsafe_noiommu_mode" in said else ""


def choose_driver(device: pci.PciDevice, wanted: Optional[str]) -> str:
    """The driver for a device: the one that is wanted, or the safest that works here;
    "" with none. Raises ValueError for one that cannot work."""
    vfio = has_module(VFIO) and (has_iommu(device) or noiommu_value())
    if wanted == VFIO and not vfio:
        raise ValueError(
            "vfio-pci needs an IOMMU, or a kernel with vfio's no-IOMMU mode, and this "
            "host has neither; switch the IOMMU on (firmware; intel_iommu=on), or "
            "take --driver uio_pci_generic"
        )
    if wanted == UIO and has_iommu(device):
        raise ValueError(
            "behind an IOMMU uio_pci_generic cannot reach memory; take --driver vfio-pci"
        )
    if wanted:
        return wanted
    if vfio:
        return VFIO
    return UIO if has_module(UIO) else ""
