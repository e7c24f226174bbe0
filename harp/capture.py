# SPDX-License-Identifier: Apache-2.0
"""`harp capture`: records the frames of HARP's flows on a packet device.

They pass beside the kernel's TCP but through its packet sockets, so another packet
socket sees them. The kernel picks HARP's frames out by a filter (classic BPF).
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import click

from harp import _tables, statfile
from harp.setup import host
from harp.statfile import Process
from harp.testing.pcapng import write_pcapng

_ETH_P_ALL = 3
_SO_ATTACH_FILTER = 26
_SO_RCVBUFFORCE = 33
_SO_TIMESTAMPNS = 35
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_PACKET_OUTGOING = 4
_PORTS_MAX = 100  # a jump of the filter reaches 255 instructions
_REFRESH_S = 1.0

# Instructions: load from the packet, compare, return.
_LDH, _LDB, _LDW, _LDX_IHL, _LDH_X = 0x28, 0x30, 0x20, 0xB1, 0x48
_JEQ, _JSET, _RET = 0x15, 0x45, 0x06


@dataclass(frozen=True)
class Target:
    """Whose frames: all of `address` on `interface`, or only those of `ports` (of TCP)
    where the kernel has the address as well."""

    interface: str
    address: str
    ports: Optional[frozenset[int]]


def target(process: Process) -> Target:
    """Raises ClickException for a device whose frames no packet socket sees."""
    scheme, _, name = _tables.innermost(process.device).partition(":")
    if scheme != "packet":
        raise click.ClickException(f"pid {process.pid} uses {process.device}: its frames pass no "
                                   "packet socket; capture works on packet devices")
    address = process.address.partition("/")[0]
    shared = _shares_address(process)
    ports = frozenset(int(flow.local.rpartition(":")[2]) for flow in process.flows)
    return Target(name, address, ports if shared and len(ports) <= _PORTS_MAX else None)


def _shares_address(process: Process) -> bool:
    """Whether the kernel has the process's address too."""
    return host.is_local(process.address.partition("/")[0])


def program(wanted: Target) -> list[tuple[int, int, int, int]]:
    """The filter: (code, jump if true, jump if false, operand)."""
    address = struct.unpack("!I", socket.inet_aton(wanted.address))[0]
    if wanted.ports is None:
        body = [(_LDH, 0, 0, 12), (_JEQ, 5, 0, 0x0806), (_JEQ, 0, 5, 0x0800),
                (_LDW, 0, 0, 26), (_JEQ, 2, 0, address), (_LDW, 0, 0, 30), (_JEQ, 0, 1, address)]
        return [*body, (_RET, 0, 0, 0xFFFFFFFF), (_RET, 0, 0, 0)]
    ports = sorted(wanted.ports)
    compare = len(ports)
    tail = [(_LDX_IHL, 0, 0, 14), (_LDH_X, 0, 0, 14)]
    # Behind each comparison: the others, the second load, its comparisons, "drop".
    tail += [(_JEQ, 2 * compare + 1 - i, 0, port) for i, port in enumerate(ports)]
    tail += [(_LDH_X, 0, 0, 16)]
    tail += [(_JEQ, compare - i, 0, port) for i, port in enumerate(ports)]
    tail += [(_RET, 0, 0, 0), (_RET, 0, 0, 0xFFFFFFFF)]
    # Whole IPv4 packets of TCP, or their first fragments.
    head = [(_LDH, 0, 0, 12), (_JEQ, 1, 0, 0x0800), (_RET, 0, 0, 0),
            (_LDB, 0, 0, 23), (_JEQ, 1, 0, 6), (_RET, 0, 0, 0),
            (_LDH, 0, 0, 20), (_JSET, 0, 1, 0x1FFF), (_RET, 0, 0, 0)]
    return head + tail


def _attach(wire: socket.socket, wanted: Target) -> None:
    """The kernel swaps filters at once: no frame slips through in between."""
    code = b"".join(struct.pack("=HBBI", *one) for one in program(wanted))
    memory = ctypes.create_string_buffer(code)
    wire.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                    struct.pack("@HP", len(code) // 8, ctypes.addressof(memory)))


def _open(wanted: Target) -> socket.socket:
    try:
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError as refused:
        raise click.ClickException(f"a packet socket: {refused}; capture needs CAP_NET_RAW, run "
                                   "as root") from refused
    try:
        _attach(wire, wanted)
        try:
            wire.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
        except PermissionError:
            pass  # a smaller buffer loses more, and the loss is told at the end
        wire.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        wire.bind((wanted.interface, _ETH_P_ALL))
    except OSError as failure:
        wire.close()
        raise click.ClickException(f"{wanted.interface}: {failure}; is it an interface of this "
                                   "network namespace?") from failure
    return wire


def _receive(wire: socket.socket) -> tuple[int, bool, bytes]:
    """(time in ns, whether this host sent it, the frame)."""
    frame, ancillary, _, address = wire.recvmsg(65535 + 64, 64)
    when = time.time_ns()
    for _, _, data in ancillary:
        seconds, nanoseconds = struct.unpack_from("=qq", data)
        when = seconds * 10 ** 9 + nanoseconds
    return when, address[2] == _PACKET_OUTGOING, frame


@dataclass
class Capture:
    """Frames of one process, until Ctrl-C or a bound (0: none)."""

    path: Path
    wanted: Target
    count: int
    seconds: float
    taken: int = 0
    lost: int = 0

    def _follow(self, wire: socket.socket) -> None:
        """New flows have new ports."""
        try:
            now = target(statfile.read(self.path))
        except (OSError, statfile.StatError):
            return  # the process has ended; its last frames may still come
        if now != self.wanted:
            self.wanted = now
            _attach(wire, now)

    def frames(self) -> Iterator[tuple[int, bool, bytes]]:
        """Raises ClickException if the interface cannot be listened to."""
        end = time.monotonic() + self.seconds if self.seconds else float("inf")
        follow_at = time.monotonic() + _REFRESH_S
        with _open(self.wanted) as wire:
            try:
                while (not self.count or self.taken < self.count) and time.monotonic() < end:
                    if time.monotonic() >= follow_at:
                        self._follow(wire)
                        follow_at = time.monotonic() + _REFRESH_S
                    if select.select([wire], [], [], 0.1)[0]:
                        self.taken += 1
                        yield _receive(wire)
            except KeyboardInterrupt:
                pass
            statistics = wire.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
            self.lost = struct.unpack("=II", statistics)[1]


def _choose(pid: Optional[int]) -> Process:
    processes = [one for one in statfile.scan() if pid is None or one.pid == pid]
    if not processes:
        raise click.ClickException(f"no process {'with HARP' if pid is None else pid} publishes in "
                                   f"{', '.join(map(str, statfile.folders()))}")
    if len(processes) > 1:
        listed = "\n".join(f"  --pid {one.pid}  {one.command}, {one.device}" for one in processes)
        raise click.UsageError(f"whose frames? Name one of\n{listed}")
    return processes[0]


@click.command()
@click.option("-w", "--write", "output", required=True, type=click.Path(path_type=Path),
              metavar="FILE", help="The pcapng file.")
@click.option("--pid", type=int, help="Whose frames [the only process with HARP].")
@click.option("-c", "--count", type=click.IntRange(0), default=0, help="Stop after so many frames.")
@click.option("--seconds", type=click.FloatRange(0), default=0.0,
              help="Stop after so much time [at Ctrl-C].")
def capture(output: Path, pid: Optional[int], count: int, seconds: float) -> None:
    """Record the frames of a running process's flows, for Wireshark or tshark.

    Works on packet devices and needs CAP_NET_RAW. Large segments appear whole, as
    the device is given them, and checksums that the device completes appear wrong.
    """
    process = _choose(pid)
    one = Capture(Path(process.path), target(process), count, seconds)
    try:
        write_pcapng(output, one.frames(), True,
                     f"harp capture: pid {process.pid}, {process.device}, {process.address}")
    except OSError as failure:
        raise click.ClickException(f"{output}: {failure}") from failure
    click.echo(f"{output}: {one.taken} frames, {one.lost} lost because this program was too slow")
