# SPDX-License-Identifier: Apache-2.0
"""Binds a NIC to another driver, and back, through driver_override in sysfs."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Optional

from harp.setup import netstate, pci, sysfs
from harp.setup.steps import Step, StepError

RETURN_S = 15.0  # seconds for an interface to come back and for udev to name it


def _order(path: Path, text: str) -> None:
    """Writes to a file of sysfs. Raises StepError with the kernel's error."""
    try:
        path.write_text(text)
    except OSError as failure:
        raise StepError(
            f"{path}: the kernel refused {text.strip()!r}: {failure.strerror}; see the kernel's "
            "log (dmesg)"
        ) from None


def _hand_over(pci_id: str, driver: str) -> None:
    """Unbinds the device from its driver and binds it to another, "" for none."""
    folder = pci.link_of(pci_id)
    if driver:
        _order(folder / "driver_override", driver)
    if pci.driver_of(pci_id):
        _order(folder / "driver/unbind", pci_id)
    if driver:
        _order(sysfs.at("sys/bus/pci/drivers_probe"), pci_id)


def _override(pci_id: str) -> str:
    text = sysfs.text(pci.link_of(pci_id) / "driver_override")
    return "" if text == "(null)" else text


def device_nodes(device: pci.PciDevice) -> list[str]:
    """The files in /dev that a process may open to drive the device."""
    found = [f"/dev/{name}" for name in sysfs.names(device.folder / "uio")]
    if device.group:
        found += [f"/dev/vfio/{device.group}", f"/dev/vfio/noiommu-{device.group}"]
    return found


def holders(paths: list[str]) -> list[int]:
    """The processes that have one of the files open, among those that this user may inspect."""
    found = []
    for pid in sysfs.names(sysfs.at("proc")):
        folder = sysfs.at("proc") / pid / "fd"
        if not pid.isdigit() or not os.access(folder, os.R_OK | os.X_OK):
            continue
        for name in sysfs.names(folder):
            try:
                if os.readlink(folder / name) in paths:
                    found.append(int(pid))
                    break
            except OSError:
                continue  # closed since the listing
    return found


@dataclass
class Bind(Step):
    """Binds the device `pci_id` to `driver`. The old state: `earlier` is the driver, "" for none;
    `override` the value of driver_override; `interface` the settings of the interface, None
    without one. `boot` is the boot id of that state; another boot makes it void."""

    kind: ClassVar[str] = "bind"
    pci_id: str
    driver: str
    earlier: str
    override: str
    interface: Optional[dict[str, Any]]
    boot: str

    @classmethod
    def of(cls, device: pci.PciDevice, driver: str, settings: Optional[netstate.Settings]) -> Bind:
        """The step for a device in its present state, with its interface's settings."""
        interface = asdict(settings) if settings else None
        override = _override(device.id)
        return cls(device.id, driver, device.driver, override, interface, sysfs.boot())

    @property
    def target(self) -> str:
        return self.pci_id

    @property
    def settings(self) -> Optional[netstate.Settings]:
        return netstate.Settings(**self.interface) if self.interface else None

    def describe(self) -> str:
        was = f" (now {self.settings.name} of {self.earlier})" if self.settings else ""
        return f"bind {self.pci_id}{was} to {self.driver}"

    def in_place(self) -> bool:
        return pci.driver_of(self.pci_id) == self.driver

    def do(self) -> None:
        if self.in_place():
            return
        _hand_over(self.pci_id, self.driver)
        if not self.in_place():
            raise StepError(
                f"{self.driver} did not bind to {self.pci_id}, whose driver is now "
                f"{pci.driver_of(self.pci_id) or 'none'}; see the kernel's log (dmesg); harp setup "
                "undo returns the NIC to the kernel"
            )

    def follow(self, earlier: Step) -> None:
        assert isinstance(earlier, Bind)
        if earlier.boot != self.boot:
            return  # a reboot has reset the earlier state
        self.earlier, self.override = earlier.earlier, earlier.override
        self.interface = earlier.interface

    def undo(self) -> str:
        device = pci.device(self.pci_id)
        if device is None:
            return f"left {self.pci_id}: the device is gone"
        if sysfs.boot() != self.boot and device.driver != self.driver:
            return ""  # a reboot has undone the step
        users = holders(device_nodes(device))
        if users and device.driver == self.driver:
            raise StepError(
                f"{self.pci_id} is in use by process {users[0]}; try again when it has ended"
            )
        if device.driver != self.earlier or _override(self.pci_id) != self.override:
            _hand_over(self.pci_id, self.earlier)
            _order(pci.link_of(self.pci_id) / "driver_override", self.override or "\n")
        return self._give_back()

    def _give_back(self) -> str:
        now = pci.driver_of(self.pci_id)
        if now != self.earlier:
            raise StepError(
                f"{self.earlier} did not bind to {self.pci_id} again, whose driver is now "
                f"{now or 'none'}; modprobe the NIC's own driver, then run undo again"
            )
        if self.settings is None:
            return f"gave {self.pci_id} back to {self.earlier or 'no driver'}"
        netstate.restore(self._interface(), self.settings)
        has = "".join(f", {address.split()[0]}" for address in self.settings.addresses)
        return f"gave {self.pci_id} back to {self.earlier}: {self.settings.name}{has}"

    def _interface(self) -> str:
        """Waits for the NIC's interface; its name. Raises StepError after RETURN_S."""
        assert self.settings
        end = time.monotonic() + RETURN_S
        found: list[str] = []
        while time.monotonic() < end:
            found = pci.interfaces_of(self.pci_id)
            if self.settings.name in found:
                return self.settings.name
            # udev may still rename the interface: wait 3 s before another name is taken.
            if found and time.monotonic() > end - RETURN_S + 3:
                return found[0]
            time.sleep(0.05)
        raise StepError(
            f"{self.pci_id} is bound to {self.earlier} again, but its interface "
            f"{self.settings.name} did not appear within {RETURN_S:.0f} s; run undo again"
        )
