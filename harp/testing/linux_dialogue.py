# SPDX-License-Identifier: Apache-2.0
"""Runs the same dialogues with Linux's TCP, which reveals wrong expectations.

`LinuxStack` replaces a `Stack`. Its packets pass through a TUN device in a network namespace of its
own, which ends with its descriptors. Its sockets are kernel sockets. Time is real, so a script uses
`within` and `silence` instead of exact times. The kernel's packets carry the kernel's time stamps:
a late script on a busy machine does not mistake them for packets during a silence.

It needs root and /dev/net/tun (`why_not` says what is missing).
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scapy.packet import Packet

from harp.testing.dialogue import _EPOCH_NS, DEFAULTS, NS_PER_MS, PEER_ADDRESS, Dialogue
from harp.testing.tcp_info import unpack_tcp_info
from harp.testing.tun_device import TUN, enter_network, open_tun, unshare_network

DEVICE = "tun0"
GRACE_MS = 1000  # the longest wait for an immediate answer
QUIET_MS = 20  # no immediate answer comes after this time
TICK_NS = NS_PER_MS

_ETH_P_ALL, _ETH_P_IP = 3, 0x0800  # <linux/if_ether.h>
_PACKET_OUTGOING = 4  # <linux/if_packet.h>
_SO_TIMESTAMPNS = 35  # <asm-generic/socket.h>


def why_not() -> str:
    """Why Linux dialogues cannot run here; "" if they can."""
    if os.geteuid() != 0:
        return "a network namespace needs root"
    return "" if os.access(TUN, os.R_OK | os.W_OK) else f"{TUN} is missing"


class LinuxSocket(socket.socket):
    """A non-blocking kernel socket with the methods of a stack's Socket. Like a stack's socket, it
    stays open after the script drops the object: `family` keeps it until the stack's end.
    """

    def join(self, family: list[LinuxSocket]) -> LinuxSocket:
        self._family = family
        family.append(self)
        self.setblocking(False)
        return self

    def accept(self) -> tuple[LinuxSocket, Any]:
        """Accepts a connection. Waits up to GRACE_MS for it."""
        select.select([self], [], [], GRACE_MS / 1000)
        descriptor, address = self._accept()  # type: ignore[attr-defined]
        return LinuxSocket(fileno=descriptor).join(self._family), address

    def recv(self, size: int, flags: int = 0) -> bytes:  # type: ignore[override]
        select.select([self], [], [], QUIET_MS / 1000)
        return super().recv(size, flags)

    def tcp_info(self) -> dict[str, int]:
        return unpack_tcp_info(self.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512))

    def ioctl(self, request: int) -> int:
        return int(struct.unpack("i", fcntl.ioctl(self, request, bytes(4)))[0])

    def error(self) -> int:
        return self.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


class LinuxStack:
    """Linux's TCP in a namespace. `config`: the fields of struct harp_stack_config that Linux also
    has; others raise ValueError. RFC 1337 is switched on, as in HARP; Linux's default is off.
    """

    def __init__(self, **config: Any) -> None:
        settings = {**DEFAULTS, **config}
        self._buffers = {name: settings[key] for name, key in
                         ((socket.SO_RCVBUF, "rcvbuf"), (socket.SO_SNDBUF, "sndbuf"))
                         if key in config}  # fmt: skip
        unknown = sorted(set(config) - _SETTINGS)
        if unknown:
            raise ValueError(f"Linux has no {', '.join(unknown)}")
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self._inside = -1
        self._ahead_ns = 0  # of the dialogue's clock before the system's
        self._sockets: list[LinuxSocket] = []
        with self._unshared():
            self._set_up(settings)

    @contextmanager
    def _unshared(self) -> Iterator[None]:
        """Runs the block in the namespace, and creates it the first time."""
        if self._inside < 0:
            unshare_network()
            self._inside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        else:
            enter_network(self._inside)
        try:
            yield
        finally:
            enter_network(self._home)

    def _set_up(self, settings: dict[str, Any]) -> None:
        self._tun = open_tun(DEVICE)
        for name, value in {
            "tcp_timestamps": settings["timestamps"],
            "tcp_sack": settings["sack"],
            "tcp_window_scaling": int(settings["window_scale"] >= 0),
            "tcp_rfc1337": 1,
            "tcp_ecn": 0,
            "tcp_no_metrics_save": 1,
        }.items():
            Path(f"/proc/sys/net/ipv4/{name}").write_text(str(value))
        # The packets before the tap is open are only the kernel's own, not the dialogue's.
        self._tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._tap.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._tap.setblocking(False)
        prefix = f"{settings['address']}/{settings['prefix']}"
        subprocess.run(
            ["ip", "-batch", "-"], check=True, text=True, timeout=60,
            input=f"link set {DEVICE} mtu {settings['mtu']} up\n"
                  f"address add {prefix} dev {DEVICE}\n"
                  f"route add {PEER_ADDRESS} dev {DEVICE} initcwnd {settings['initial_window']} "
                  f"rto_min {settings['rto_min_us'] // 1000}ms "
                  "congctl cubic "  # as HARP, whatever this machine's default is
                  f"quickack {int(settings['delayed_ack_us'] == 0)}\n",
        )  # fmt: skip

    def close(self) -> None:
        """Closes the sockets and the namespace."""
        for one in self._sockets:
            one.close()
        self._tap.close()
        for descriptor in (self._tun, self._inside, self._home):
            os.close(descriptor)

    @property
    def now(self) -> int:
        return time.time_ns() + self._ahead_ns

    def advance(self, now_ns: int) -> None:
        """Waits until that time. The first call sets the dialogue's clock."""
        if self._ahead_ns == 0:
            self._ahead_ns = now_ns - time.time_ns()
        time.sleep(max(now_ns - self.now, 0) / 1e9)

    def next_deadline(self) -> int:
        """The next tick: Linux does not report its deadlines."""
        return self.now + TICK_NS

    def input(self, frame: bytes) -> bool:
        os.write(self._tun, frame)
        return True

    def take(self) -> list[tuple[int, bytes]]:
        """The packets that the kernel has sent since the last call, with the dialogue's time."""
        taken = []
        while True:
            try:
                frame, control, _, address = self._tap.recvmsg(65536, 64)
            except BlockingIOError:
                break
            if address[1] == _ETH_P_IP and address[2] == _PACKET_OUTGOING:
                seconds, nanoseconds = struct.unpack("qq", control[0][2][:16])
                taken.append((seconds * 10**9 + nanoseconds + self._ahead_ns, frame))
        while True:  # the tap has these packets; this only empties the device's queue
            try:
                os.read(self._tun, 65536)
            except BlockingIOError:
                return taken

    def socket(self) -> LinuxSocket:
        with self._unshared():
            made = LinuxSocket(socket.AF_INET, socket.SOCK_STREAM).join(self._sockets)
        for name, size in self._buffers.items():
            made.setsockopt(socket.SOL_SOCKET, name, size)
        return made


_SETTINGS = {"mtu", "initial_window", "rto_min_us", "delayed_ack_us", "timestamps", "sack",
             "window_scale", "sndbuf", "rcvbuf"}  # fmt: skip


class LinuxDialogue(Dialogue):
    """A Dialogue with a LinuxStack. It waits a moment for immediate answers."""

    who = "linux"

    def __init__(self, **options: Any) -> None:
        config = {key: options[key] for key in list(options) if key in _SETTINGS}
        rest = {key: value for key, value in options.items() if key not in _SETTINGS}
        self._linux = LinuxStack(**config)
        mtu = {"mtu": config["mtu"]} if "mtu" in config else {}
        super().__init__(stack=self._linux, tolerance_ms=100, **mtu, **rest)  # type: ignore[arg-type]

    def close(self) -> None:
        self._linux.close()

    def _taken(self) -> list[tuple[int, bytes]]:
        return [(ns - _EPOCH_NS, frame) for ns, frame in self._linux.take()]

    def _settle(self) -> None:
        super()._settle()
        self._ns = max(self._ns, self._linux.now - _EPOCH_NS)

    def _quiet(self, until: float | None) -> float:
        return self.now + QUIET_MS if until is None else until

    def send(self, packet: Packet | bytes, at: float | None = None) -> None:
        super().send(packet, None if at is None else max(at, self.now))

    def expect(
        self,
        packet: Packet,
        at: float | None = None,
        within: float | None = None,
        length: int | None = None,
    ) -> Packet:
        if at is None:
            within = GRACE_MS + (within or 0)
        return super().expect(packet, at, within, length)

    def silence(self, until: float | None = None, during: float | None = None) -> None:
        super().silence(self._quiet(until) if during is None else None, during)

    def settle(self) -> None:
        self.run(self._quiet(None))

    def _catch_up(self, until: float | None) -> None:
        super()._catch_up(self._quiet(until))
