# SPDX-License-Identifier: Apache-2.0
"""The kernel's settings of a NIC that xdp devices depend on: queues, receive ring, and offloads
that merge segments or take VLAN tags out of frames.

They are those of ethtool(8), by the same ioctl (Linux, uapi/linux/ethtool.h).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import ClassVar, Optional

from harp.setup import sysfs
from harp.setup.interface_value import InterfaceValue
from harp.setup.steps import Step, StepError

QUEUES_MOST = 64  # XDP_NIC_QUEUES of dpdk_glue/xdp/xdp_socket.h
RING_LEAST = 1024  # frames that wait for the kernel until the poller's core is free

_SIOCETHTOOL = 0x8946
_IFREQ = struct.Struct("16sP16x")
_IFNAMSIZ = 16
_GET_STRINGS, _GET_SIZES, _GET_FEATURES, _SET_FEATURES = 0x1B, 0x37, 0x3A, 0x3B
_FEATURES = 4  # ETH_SS_FEATURES
_NAME_WORDS = 8  # ETH_GSTRING_LEN / 4

# The kernel's names of the offloads. ethtool calls the last one rxvlan.
_OFFLOADS = {"lro": "rx-lro", "rx-gro-hw": "rx-gro-hw", "rxvlan": "rx-vlan-hw-parse"}


@dataclass(frozen=True)
class _Table:
    """An array of 32-bit numbers that an ioctl reads and another one writes, the command first.
    `now` and `most` are the places of the setting and of the driver's limit."""

    get: int
    set: int
    length: int
    now: int
    most: int


_RING = _Table(0x10, 0x11, 9, 5, 1)  # struct ethtool_ringparam: rx_pending, rx_max_pending
_COMBINED = _Table(0x3C, 0x3D, 9, 8, 4)  # struct ethtool_channels: combined_count, max_combined
_RX_ONLY = _Table(0x3C, 0x3D, 9, 5, 1)  # rx_count, max_rx


def _ask(interface: str, words: list[int]) -> list[int]:
    """The words that the driver answers. Raises OSError: EOPNOTSUPP if it has no such command,
    EPERM without CAP_NET_ADMIN for one that sets, ENODEV."""
    numbers = (ctypes.c_uint32 * len(words))(*words)
    request = _IFREQ.pack(interface.encode()[: _IFNAMSIZ - 1], ctypes.addressof(numbers))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    return list(numbers)


def _read(interface: str, table: _Table) -> Optional[list[int]]:
    try:
        return _ask(interface, [table.get] + [0] * (table.length - 1))
    except OSError:
        return None


def _queue_table(interface: str) -> _Table:
    found = _read(interface, _COMBINED)
    return _COMBINED if found and found[_COMBINED.now] else _RX_ONLY


def _feature_names(interface: str) -> list[str]:
    """The names of all features, in the order of their bits. Raises OSError."""
    mask = struct.unpack("=2I", struct.pack("=Q", 1 << _FEATURES))
    count = _ask(interface, [_GET_SIZES, 0, *mask, 0])[4]
    words = _ask(interface, [_GET_STRINGS, _FEATURES, count] + [0] * (_NAME_WORDS * count))[3:]
    text, size = struct.pack(f"={len(words)}I", *words), 4 * _NAME_WORDS
    return [text[at : at + size].split(b"\0")[0].decode() for at in range(0, len(text), size)]


def _offload(interface: str, key: str) -> tuple[int, bool]:
    """0: off, 1: on; and whether the driver lets it change. Raises OSError, and ValueError if this
    kernel has no such offload."""
    names = _feature_names(interface)
    block, bit = divmod(names.index(_OFFLOADS[key]), 32)
    blocks = -(-len(names) // 32)
    # For each block: available, requested, active and fixed features.
    words = _ask(interface, [_GET_FEATURES, blocks] + [0] * (4 * blocks))[2:]
    available, _, active, _ = words[4 * block :][:4]
    return active >> bit & 1, bool(available >> bit & 1)


def _switch(interface: str, key: str, new: int) -> None:
    """Switches an offload on or off. Raises as _offload does."""
    names = _feature_names(interface)
    block, bit = divmod(names.index(_OFFLOADS[key]), 32)
    wanted = [0] * (2 * -(-len(names) // 32))  # for each block: which features, and their states
    wanted[2 * block : 2 * block + 2] = 1 << bit, new << bit
    _ask(interface, [_SET_FEATURES, len(wanted) // 2, *wanted])
    if _offload(interface, key)[0] != new:  # the kernel reports no error for what it ignores
        raise OSError(errno.EOPNOTSUPP, f"the driver of {interface} keeps {key} as it is")


def value(interface: str, key: str) -> Optional[int]:
    """The setting now; None if the driver does not tell. key: "queues", "rx-ring", or an offload
    (0: off, 1: on): "lro", "rx-gro-hw" or "rxvlan"."""
    if key in _OFFLOADS:
        try:
            return _offload(interface, key)[0]
        except (OSError, ValueError):
            return None
    table = _queue_table(interface) if key == "queues" else _RING
    found = _read(interface, table)
    return found[table.now] if found else None


def ring_most(interface: str) -> int:
    """The largest receive ring of the driver; 0 if it does not tell."""
    found = _read(interface, _RING)
    return found[_RING.most] if found else 0


def change(interface: str, key: str, new: int) -> None:
    """Makes the setting. Raises OSError: EPERM without CAP_NET_ADMIN, or the driver's refusal."""
    if key in _OFFLOADS:
        _switch(interface, key, new)
        return
    table = _queue_table(interface) if key == "queues" else _RING
    words = _ask(interface, [table.get] + [0] * (table.length - 1))
    words[0], words[table.now] = table.set, new
    _ask(interface, words)


def command(interface: str, key: str, new: int) -> str:
    """The command of ethtool(8) that makes the setting."""
    if key in _OFFLOADS:
        return f"ethtool -K {interface} {key} {'on' if new else 'off'}"
    if key == "rx-ring":
        return f"ethtool -G {interface} rx {new}"
    kind = "combined" if _queue_table(interface) is _COMBINED else "rx"
    return f"ethtool -L {interface} {kind} {new}"


_MERGES = "most drivers refuse XDP programs while the NIC merges segments"
_WHY = {
    "lro": _MERGES,
    "rx-gro-hw": _MERGES,
    "queues": f"an xdp device hears at most {QUEUES_MOST} queues",
    "rx-ring": "bursts wait there until a core is free",
}


def wanted(interface: str) -> dict[str, int]:
    """The settings that an xdp device needs and that are not in force."""
    found: dict[str, int] = {}
    for key in ("lro", "rx-gro-hw"):
        # A virtio device may have merging that never ends: XDP programs then run later.
        if value(interface, key) and _offload(interface, key)[1]:
            found[key] = 0
    if (value(interface, "queues") or 0) > QUEUES_MOST:
        found["queues"] = QUEUES_MOST
    ring, most = value(interface, "rx-ring"), ring_most(interface)
    if ring is not None and ring < min(RING_LEAST, most):
        found["rx-ring"] = min(RING_LEAST, most)
    return found


@dataclass
class NicSetting(InterfaceValue):
    """Makes a setting of an interface. A change of queues or rings interrupts some NICs' links for
    a moment."""

    kind: ClassVar[str] = "nic"

    @property
    def target(self) -> str:
        return f"{self.interface} {self.key}"

    def describe(self) -> str:
        return f"{command(self.interface, self.key, self.value)} ({_WHY[self.key]})"

    def now(self) -> Optional[int]:
        return value(self.interface, self.key)

    def in_place(self) -> bool:
        now = self.now()
        if now is None:
            return False
        return now >= self.value if self.key == "rx-ring" else now <= self.value

    def make(self, value: int) -> None:
        try:
            change(self.interface, self.key, value)
        except PermissionError:
            raise
        except OSError as failure:
            raise StepError(
                f"{command(self.interface, self.key, value)}: {failure.strerror}; the driver "
                "refuses it: end programs that use the NIC's queues, or use a packet device"
            ) from failure

    def do(self) -> None:
        self.make(self.value)


def steps(interface: str) -> list[Step]:
    """The steps that an xdp device on this interface needs, those in place left out."""
    return [
        NicSetting(interface, key, new, value(interface, key) or 0, sysfs.boot())
        for key, new in wanted(interface).items()
    ]
