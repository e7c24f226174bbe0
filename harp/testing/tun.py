# SPDX-License-Identifier: Apache-2.0
"""Linux's TCP at the other end of a wire that is in this process, in real time.

A kernel with a network namespace of its own has one link, a TUN device; what it sends there is
read here, and given to one of HARP's stacks, and back. On the way a packet may be looked at,
lost, or held back, which brings both sides into any state that there is.

    with Kernel() as kernel, closing(kernel.socket()) as theirs:
        wire = TunWire(make_stack(address=HARP_ADDRESS), kernel)
        ours = wire.stack.socket()
        ...
        wire.run(lambda: state_of(ours) == "ESTABLISHED")

It needs root. Nothing here blocks for longer than it says.
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
PATIENCE_S = 20.0
STEP_S = 0.005
BURST = 64  # packets between two looks at the time
_TCP_INFO_SIZE = 512

AnySocket = Union[Socket, socket.socket]
# A packet on its way to the kernel (True) or to HARP: whether it may go on.
Fate = Callable[[bool, bytes], bool]


class Kernel:
    """A namespace with a TUN device, and sockets in it.

    sysctls: below net.ipv4, "tcp_sack": "0". A namespace belongs to a thread: one of our own
    stays in it, and does what has to be done there.
    """

    def __init__(self, mtu: int = 1500, **sysctls: object) -> None:
        self._thread = ThreadPoolExecutor(1, initializer=unshare_network)
        try:
            self.fd = self._thread.submit(self._build, mtu, sysctls).result(PATIENCE_S)
        except BaseException:
            self._thread.shutdown()
            raise

    @staticmethod
    def _build(mtu: int, sysctls: "dict[str, object]") -> int:
        fd = open_tun("tun0")
        for name, value in sysctls.items():
            Path("/proc/sys/net/ipv4", name).write_text(str(value))
        Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
        for words in (
            f"address add {KERNEL_ADDRESS}/24 dev tun0",
            f"link set tun0 mtu {mtu} up",
            f"route change 192.0.2.0/24 dev tun0 src {KERNEL_ADDRESS} congctl cubic",
        ):
            subprocess.run(["ip", *words.split()], check=True, timeout=PATIENCE_S)
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
        self._thread.shutdown()  # with it goes the namespace, once its sockets are closed

    def socket(self) -> socket.socket:
        """A TCP socket of this kernel, which does not block."""
        made = self._thread.submit(socket.socket).result(PATIENCE_S)
        made.setblocking(False)
        return made

    def waiting(self) -> int:
        """Its connections in TIME-WAIT."""
        words = ["ss", "-Htan", "state", "time-wait"]
        done = self._thread.submit(
            subprocess.run, words, capture_output=True, check=True, timeout=PATIENCE_S
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
    """Joins a stack and a kernel. fate: asked about each packet; None lets all go on.

    Packets held back (`hold`) wait in `held`, oldest first, until they are let go; `seen` are
    all that were on the wire since it was cleared: whether to the kernel, and the packet.
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
        """What goes there waits from now on. Off: what waited is let go, in order."""
        self._holds[to_kernel] = on
        if not on:
            waiting, self.held[to_kernel] = self.held[to_kernel], []
            for packet in waiting:
                self.give(to_kernel, packet)

    def give(self, to_kernel: bool, packet: bytes) -> None:
        """The packet arrives there, now."""
        if to_kernel:
            os.write(self.kernel.fd, packet)
        else:
            self.stack.input(packet)

    def run(self, until: Callable[[], object], seconds: float = PATIENCE_S) -> None:
        """Until that is so; AssertionError if it is not in time."""
        deadline = time.monotonic() + seconds
        while not until():
            self.step()
            assert time.monotonic() < deadline, f"not within {seconds} s"

    def run_for(self, seconds: float) -> None:
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            self.step()

    def step(self) -> None:
        """Time, at most a burst of packets each way, and a short sleep if there are none."""
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
