# SPDX-License-Identifier: Apache-2.0
"""Links through shared memory: HARP over DPDK between two processes, virtio_user and vhost.

Neither a NIC nor the kernel is on the path: the vhost side copies frames from and to the memory of
the other. So the two directions differ, and are named by their sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional

from tools.hosts.lab import Host
from tools.measure.records import Record
from tools.measure.site import perf_args, write_configuration

DESCRIPTORS = 1024
VHOST, VIRTIO_USER = "vhost", "virtio_user"
DIRECTIONS = (f"{VHOST}->{VIRTIO_USER}", f"{VIRTIO_USER}->{VHOST}")


@dataclass(frozen=True)
class SharedLink:
    """`segments`: the devices do TSO and checksums, as cloud NICs do; otherwise HARP makes whole
    frames and their checksums. `beside`: the kernel's wire of that MTU."""

    name: str
    mtu: int
    segments: bool
    beside: str

    def device(self, side: str, socket: Path) -> str:
        """The device line of one end; vhost makes the socket."""
        options = "" if self.segments else ";tx_checksum=0;rx_checksum=0;tso=0;lro=0"
        if side == VHOST:
            return f"dpdk:net_vhost0,iface={socket}{',tso=1' if self.segments else ''}{options}"
        merge = ",mrg_rxbuf=1" if self.segments else ""
        return f"dpdk:virtio_user0,path={socket},queue_size={DESCRIPTORS}{merge}{options}"

    def facts(self) -> Record:
        """The link's fields in records."""
        return {
            "wire": self.name,
            "mtu": self.mtu,
            "offloads": "all" if self.segments else "none",
        }


SHARED = {
    link.name: link
    for link in (
        SharedLink("vhost-1500", 1500, False, "veth-1500-nooff"),
        SharedLink("vhost-9000", 9000, False, "veth-9000"),
        SharedLink("vhost-tso", 1500, True, "veth-1500"),
    )
}


def sides(direction: str) -> List[str]:
    """The devices of host 0, the sender, and of host 1."""
    return direction.split("->")


@dataclass(frozen=True)
class HarpEthdev:
    """HARP over a shared link. The hosts of the lab carry only the rendezvous, no data."""

    link: SharedLink
    direction: str = DIRECTIONS[0]
    flows: Optional[int] = None
    api: Optional[int] = None
    name: str = "harp-ethdev"

    def label(self) -> str:
        return f"{self.name} in shared memory ({self.link.name}), {self.direction}"

    def arguments(self) -> List[str]:
        return perf_args(self.api, self.flows)

    def environment(self, host: Host, folder: Path) -> Dict[str, str]:
        """Writes the host's configuration into `folder`. Returns the variables that name it. The
        socket is in the parent folder, which all hosts share."""
        device = self.link.device(sides(self.direction)[host.index], folder.parent / "vhost")
        keys = {
            "device": device,
            "address": f"{host.own_address}/{host.prefix}",
            "mtu": str(self.link.mtu),
        }
        return write_configuration(folder, keys)

    def facts(self) -> Record:
        """The fields of a record that `harp perf` does not know."""
        return {**self.link.facts(), "address": "own", "direction": self.direction}
