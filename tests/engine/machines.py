# SPDX-License-Identifier: Apache-2.0
"""Made-up hosts: folders that look like /sys and /proc/driver below another root."""

from __future__ import annotations

from pathlib import Path


class Machine:
    """A host under construction; functions are named by their PCI ids."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/bus/pci/devices").mkdir(parents=True)
        (root / "sys/class/net").mkdir(parents=True)

    def function(self, place: str, node: int) -> Path:
        """A PCI function at pci0000:10/0000:10:00.0/..."""
        folder = self.root / "sys/devices" / place
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
        (self.root / "sys/bus/pci/devices" / folder.name).symlink_to(folder)
        return folder

    def gpu(self, place: str, node: int = 0) -> None:
        function = self.function(place, node)
        said = self.root / "proc/driver/nvidia/gpus" / function.name
        said.mkdir(parents=True)
        (said / "information").write_text("Model: H100\n")

    def nic(self, name: str, place: str, node: int = 0, below: str = "", index: int = 77) -> None:
        """below: a bus of the device's own between its function and the interface."""
        device = self.function(place, node) / below
        device.mkdir(exist_ok=True)
        interface = self.root / "sys/class/net" / name
        interface.mkdir()
        (interface / "device").symlink_to(device)
        (interface / "ifindex").write_text(f"{index}\n")
        (device / "net").mkdir()
        (device / "net" / name).symlink_to(interface)

    def port(self, name: str, beside: str, number: int) -> None:
        """Another port of a NIC that the host has: an interface of the same PCI function."""
        device = (self.root / "sys/class/net" / beside / "device").resolve()
        interface = self.root / "sys/class/net" / name
        interface.mkdir()
        (interface / "device").symlink_to(device)
        (interface / "ifindex").write_text("78\n")
        (interface / "dev_port").write_text(f"{number}\n")
        (device / "net" / name).symlink_to(interface)

    def speed(self, name: str, says: str) -> None:
        (self.root / "sys/class/net" / name / "speed").write_text(f"{says}\n")


def configure(folder: Path, *files: str) -> None:
    """Replaces the folder's files by one for each NIC in the order given; "nic0", or
    "nic0 gpu = ..."."""
    for old in folder.glob("ztcp*.conf"):
        old.unlink()
    for number, text in enumerate(files):
        name, _, more = text.partition(" ")
        device = name if ":" in name else f"packet:{name}"
        (folder / f"ztcp{number}.conf").write_text(f"device = {device}\n{more}\n")
