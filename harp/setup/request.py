# SPDX-License-Identifier: Apache-2.0
"""What a user asks set-up for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from harp import _tables
from harp.setup import pci


class PlanError(ValueError):
    """What was asked for cannot be set up on this host. The text says why and what
    would do."""


class WrongUsage(PlanError):
    """What was asked for is wrong on any host."""


def place_of(device: str) -> str:
    """What a device is about, without fault wrappers and options: an interface for
    packet, a PCI id (with its domain) or the name of a software device for dpdk."""
    scheme, _, name = _tables.innermost(device).partition(":")
    if scheme != "dpdk":
        return name
    short = re.split("[,;]", name)[0]
    return pci.full_id(short) or short


@dataclass
class Request:
    """A NIC as the user asks for it: `settings` are keys of ztcp*.conf, device first; one that is
    "" shall not be there."""

    settings: dict[str, str] = field(default_factory=dict)

    @property
    def device(self) -> str:
        return self.settings["device"]

    @property
    def scheme(self) -> str:
        """The kind of device, without fault wrappers: packet, dpdk."""
        return _tables.innermost(self.device).partition(":")[0]

    @property
    def place(self) -> str:
        return place_of(self.device)

    @property
    def own_address(self) -> Optional[str]:
        """HARP's own address without its prefix; None where it shares the kernel's. Known once
        the address is."""
        address = self.settings["address"]
        return None if address == "kernel" else address.partition("/")[0]
