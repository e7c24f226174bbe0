# SPDX-License-Identifier: Apache-2.0
"""A user's request to set-up."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from harp import _tables
from harp.setup import pci


class PlanError(ValueError):
    """The request cannot be fulfilled on this host. The text says why, and what to do."""


class WrongUsage(PlanError):
    """The request is wrong on any host."""


# Devices on an interface that the kernel keeps, and whose address HARP may share.
ON_INTERFACE = ("packet", "xdp")


def is_on_interface(device: str) -> bool:
    """Whether the kernel keeps the device's interface."""
    return scheme_of(device) in ON_INTERFACE


def scheme_of(device: str) -> str:
    """The kind of a device, without fault wrappers: packet, xdp, dpdk."""
    return _tables.innermost(device).partition(":")[0]


def place_of(device: str) -> str:
    """The device's name without fault wrappers and options: an interface for packet and xdp; a PCI
    id (with its domain) or a software device's name for dpdk."""
    scheme, _, name = _tables.innermost(device).partition(":")
    if scheme == "xdp":
        return name.partition(",")[0]
    if scheme != "dpdk":
        return name
    short = re.split("[,;]", name)[0]
    return pci.full_id(short) or short


@dataclass
class Request:
    """A device that the user requests. `settings` are keys of ztcp*.conf, device first; the value
    "" removes a key."""

    settings: dict[str, str] = field(default_factory=dict)

    @property
    def device(self) -> str:
        return self.settings["device"]

    @property
    def scheme(self) -> str:
        """The kind of device, without fault wrappers: packet, xdp, dpdk."""
        return scheme_of(self.device)

    @property
    def place(self) -> str:
        return place_of(self.device)

    @property
    def own_address(self) -> Optional[str]:
        """HARP's own address without its prefix; None if it shares the kernel's. `settings` must
        have the address."""
        address = self.settings["address"]
        return None if address == "kernel" else address.partition("/")[0]
