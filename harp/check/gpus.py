# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this host and how fast PCIe feeds them, by sysfs."""

from __future__ import annotations

import re
from typing import Any

from harp.setup import sysfs

_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controllers
_OLD_GT = 5.0  # up to this rate a lane sends 10 bits for 8, and above it 130 for 128


def _gbit(speed: str, width: str) -> float:
    """The rate of a PCIe link, Gbit/s; 0: unknown. speed: "16.0 GT/s PCIe"; width: lanes."""
    found = re.match(r"([\d.]+) GT/s", speed)
    if not found or not width.isdigit():
        return 0.0
    rate = float(found[1])
    return rate * int(width) * (0.8 if rate <= _OLD_GT else 128 / 130)


def found() -> list[dict[str, Any]]:
    """Each GPU's PCI id and the rate of its PCIe link, Gbit/s. Idle GPUs lower the speed of their
    link, so the highest one counts."""
    folder = sysfs.at("sys/bus/pci/devices")
    gpus = []
    for name in sysfs.names(folder):
        one = folder / name
        if sysfs.text(one / "vendor") != _NVIDIA:
            continue
        if sysfs.text(one / "class")[:6] in _DISPLAY:
            gbit = _gbit(sysfs.text(one / "max_link_speed"), sysfs.text(one / "max_link_width"))
            gpus.append({"pci": name, "pcie_gbit": round(gbit, 1)})
    return gpus
