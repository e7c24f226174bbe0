# SPDX-License-Identifier: Apache-2.0
"""Giving a NIC to another driver, and taking it back, by sysfs's driver_override."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Optional

from harp.setup import netstate, pci, sysfs
from harp.setup.steps import Step, StepError

RETURN_S = 15.0  # for an interface to come back, with udev giving it its name


def _order(path: Path, text: str) -> None:
    """Tells the kernel something about a device. Raises StepError with its answer."""
    try:
        path.write_text(text)
    except OSError as failure:
        raise StepError(
            f"{path}: the kernel refused {text.strip()!r}: {failure.strerror}; its log "
            "(dmesg) may say why"
        ) from None


def _hand_over(pci_id: str, driver: str) -> None:
    """Takes the device from the driver that has it and gives it to another, "" for none."""
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
    """The files in /dev through which a process drives the device."""
    found = [f"/dev/{name}" for name in sysfs.names(device.folder / "uio")]
    if device.group:
        found += [f"/dev/vfio/{device.group}", f"/dev/vfio/noiommu-{device.group}"]
    return found


def holders(paths: list[str]) -> list[int]:
    """The processes that have one of the files open, as far as we may see."""
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
                continue  # closed meanwhile
    return found


@dataclass
class Bind(Step):
    """The device `pci_id` under `driver`. `earlier` is the driver that it had, "" for
    none, `override` what driver_override said, and `interface` the settings of its
    interface, None if it had none; they hold for the boot in which they were read."""

    kind: ClassVar[str] = "bind"
    pci_id: str
    driver: str
    earlier: str
    override: str
    interface: Optional[dict[str, Any]]
    boot: str

    @classmethod
    def of(cls, device: pci.PciDevice, driver: str, settings: Optional[netstate.Settings]) -> Bind:
        """The step for a device as it is now; its interface's settings."""
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
                f"{self.driver} did not take {self.pci_id}, which has now "
                f"{pci.driver_of(self.pci_id) or 'no driver'}; the kernel's log "
                "(dmesg) may say why; harp setup undo gives the NIC back"
            )

    def follow(self, earlier: Step) -> None:
        assert isinstance(earlier, Bind)
        if earlier.boot != self.boot:
            return  # what was read then is gone; the kernel has made it anew
        self.earlier, self.override = earlier.earlier, earlier.override
        self.interface = earlier.interface

    def undo(self) -> str:
        device = pci.device(self.pci_id)
        if device is None:
            return f"left {self.pci_id}: the device is gone"
        if sysfs.boot() != self.boot and device.driver != self.driver:
            return ""  # another boot has given it back
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
                f"{self.earlier} did not take {self.pci_id} back, which has now "
                f"{now or 'no driver'}; modprobe the NIC's own driver, then undo "
                "again"
            )
        if self.settings is None:
            return f"gave {self.pci_id} back to {self.earlier or 'no driver'}"
        netstate.restore(self._interface(), self.settings)
        has = "".join(f", {words.split()[0]}" for words in self.settings.addresses)
        return f"gave {self.pci_id} back to {self.earlier}: {self.settings.name}{has}"

    def _interface(self) -> str:
        """Its interface's name, once it is there. Raises StepError."""
        assert self.settings
        end = time.monotonic() + RETURN_S
        found: list[str] = []
        while time.monotonic() < end:
            found = pci.interfaces_of(self.pci_id)
            if self.settings.name in found:
                return self.settings.name
            # A name of another kind may be on its way to what udev makes of it.
            if found and time.monotonic() > end - RETURN_S + 3:
                return found[0]
            time.sleep(0.05)
        raise StepError(
            f"{self.pci_id} is back under {self.earlier}, but its interface "
            f"{self.settings.name} did not come within {RETURN_S:.0f} s; undo again"
        )
