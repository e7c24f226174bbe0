# SPDX-License-Identifier: Apache-2.0
"""A wire in this process between HARP's stack and Linux's TCP, in real time.

Linux's TCP runs in a new network namespace with one link, a TUN device. This module reads the
packets from the device and passes them to a stack of HARP's, and back. A test may inspect, drop or
hold back packets on the way, and so bring both sides into any state.

    with Kernel() as kernel, closing(kernel.socket()) as theirs:
        wire = TunWire(make_stack(address=HARP_ADDRESS), kernel)
        ours = wire.stack.socket()
        ...
        wire.run(lambda: state_of(ours) == "ESTABLISHED")

It needs root. Every wait has a timeout.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Optional, Union

from harp.testing._stack import Socket, Stack
from harp.testing.tcp_info import state_name, unpack_tcp_info
from harp.testing.tun_device import open_tun, unshare_network

HARP_ADDRESS = "192.0.2.1"
KERNEL_ADDRESS = "192.0.2.2"
WAIT_S = 20.0
STEP_S = 0.005
BURST = 64  # packets between two updates of the stack's time
_TCP_INFO_SIZE = 512

AnySocket = Union[Socket, socket.socket]
# Decides whether a packet passes. The first argument is True for packets to the kernel.
Fate = Callable[[bool, bytes], bool]


class Kernel:
    """A network namespace with a TUN device, and sockets in it.

    sysctls: values below net.ipv4, such as tcp_sack="0". Namespaces belong to threads, so a
    thread of this object stays in the namespace and does all work there.
    """

    def __init__(self, mtu: int = 1500, **sysctls: object) -> None:
        self._thread = ThreadPoolExecutor(1, initializer=unshare_network)
        try:
            self.fd = self._thread.submit(self._build, mtu, sysctls).result(WAIT_S)
        except BaseException:
            self._thread.shutdown()
            raise

    @staticmethod
    def _build(mtu: int, sysctls: "dict[str, object]") -> int:
        fd = open_tun("tun0")
        for name, value in sysctls.items():
            Path("/proc/sys/net/ipv4", name).write_text(str(value))
        Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
        for args in (
            f"address add {KERNEL_ADDRESS}/24 dev tun0",
            f"link set tun0 mtu {mtu} up",
            f"route change 192.0.2.0/24 dev tun0 src {KERNEL_ADDRESS} congctl cubic",
        ):
            subprocess.run(["ip", *args.split()], check=True, timeout=WAIT_S)
        return fd

    def __enter__(self) -> Kernel:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        os.close(self.fd)
        self._thread.shutdown()  # the namespace ends with the thread and its sockets

    def socket(self) -> socket.socket:
        """A non-blocking TCP socket in the namespace."""
        made = self._thread.submit(socket.socket).result(WAIT_S)
        made.setblocking(False)
        return made

    def waiting(self) -> int:
        """The number of its connections in TIME-WAIT."""
        args = ["ss", "-Htan", "state", "time-wait"]
        done = self._thread.submit(
            subprocess.run, args, capture_output=True, check=True, timeout=WAIT_S
        ).result()
        return len(done.stdout.splitlines())


def info_of(end: AnySocket) -> "dict[str, int]":
    """TCP_INFO of either kind of socket."""
    if isinstance(end, Socket):
        return end.tcp_info()
    return unpack_tcp_info(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE))


def state_of(end: AnySocket) -> str:
    return state_name(info_of(end))


class TunWire:
    """Joins a stack and a kernel. fate: decides about each packet; None: all pass.

    `held` has the packets that `hold` keeps back, the oldest first. `seen` has all packets since
    the test cleared it: (whether to the kernel, packet).
    """

    def __init__(self, stack: Stack, kernel: Kernel, fate: Optional[Fate] = None) -> None:
        self.stack = stack
        self.kernel = kernel
        self.fate = fate
        self.held: dict[bool, list[bytes]] = {True: [], False: []}
        self.seen: list[tuple[bool, bytes]] = []
        self._holds = {True: False, False: False}
        self._poll = select.poll()
        self._poll.register(kernel.fd, select.POLLIN)
        self._advance()

    def hold(self, to_kernel: bool, on: bool = True) -> None:
        """Holds back packets in one direction from now on. Off: passes them on, in order."""
        self._holds[to_kernel] = on
        if not on:
            waiting, self.held[to_kernel] = self.held[to_kernel], []
            for packet in waiting:
                self.give(to_kernel, packet)

    def give(self, to_kernel: bool, packet: bytes) -> None:
        """Delivers the packet now."""
        if to_kernel:
            os.write(self.kernel.fd, packet)
        else:
            self.stack.input(packet)

    def run(self, until: Callable[[], object], seconds: float = WAIT_S) -> None:
        """Runs until `until` is true. Raises AssertionError after `seconds`."""
        deadline = time.monotonic() + seconds
        while not until():
            self.step()
            assert time.monotonic() < deadline, f"not within {seconds} s"

    def run_for(self, seconds: float) -> None:
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            self.step()

    def step(self) -> None:
        """Updates the time and carries at most a burst of packets from the kernel, and all of the
        stack. Sleeps up to STEP_S if there are none."""
        self._advance()
        self._carry_out()
        if self._poll.poll(STEP_S * 1000):
            for _ in range(BURST):
                try:
                    packet = os.read(self.kernel.fd, 65536)
                except BlockingIOError:
                    break
                self._carry(False, packet)
        self._advance()
        self._carry_out()

    def _advance(self) -> None:
        self.stack.advance(time.monotonic_ns())

    def _carry_out(self) -> None:
        for packet in self.stack.take():
            self._carry(True, packet)

    def _carry(self, to_kernel: bool, packet: bytes) -> None:
        if packet[0] >> 4 != 4:
            return
        self.seen.append((to_kernel, packet))
        if self.fate and not self.fate(to_kernel, packet):
            return
        if self._holds[to_kernel]:
            self.held[to_kernel].append(packet)
        else:
            self.give(to_kernel, packet)
