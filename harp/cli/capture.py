# SPDX-License-Identifier: Apache-2.0
"""`harp capture`: records the frames of HARP's flows.

The frames of a packet device bypass the kernel's TCP, but pass through packet sockets, so another
packet socket receives copies. The kernel filters HARP's frames (`capture_filter.py`) and puts them
into a ring (`packet_ring.py`). The process itself copies the frames of other devices
(`frame_sockets.py`).
"""

from __future__ import annotations

import re
import socket
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional, Union

import click

from harp import _tables
from harp.cli.flow_options import Address, ports_option
from harp.cli.stop import Stop
from harp.observe import capture_filter, pcap_filter, statfile
from harp.observe.capture_files import STDOUT, CaptureFiles
from harp.observe.capture_filter import Connection, Target
from harp.observe.frame_sockets import CaptureRefused, FrameSockets, asks_for_length
from harp.observe.packet_ring import RETIRE_MS, Frame, Instruction, PacketRing
from harp.observe.statfile import Flow, Process
from harp.setup import host

_FLOWS_SHOWN = 512  # entries of a statistics file; the ports of further flows are not known
_SNAPLEN = 262144  # bytes; keeps every frame whole
_HEADERS = 256  # bytes: Ethernet, IP and TCP with options, and HARP's first header
_BEHIND = 4  # if 1/4 of the ring is full, only headers are kept
_REFRESH_S = 1.0
_WAIT_S = 0.1

Source = Union[PacketRing, FrameSockets]


@dataclass(frozen=True)
class Narrowed:
    """The user's filter for the process's frames. A frame must fit every part; see `--help`."""

    hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    flows: tuple[tuple[int, Optional[int]], ...] = ()  # link, number within the link
    direction: Optional[str] = None
    expression: tuple[Instruction, ...] = ()

    def takes(self, flow: Flow) -> bool:
        return any(flow.link == link and number in (None, flow.flow) for link, number in self.flows)


def target(process: Process, narrowed: Narrowed = Narrowed()) -> Target:  # noqa: B008
    """The capture target of a process. Its interface is "" if the process itself copies the
    frames. Raises ClickException for a damaged statistics file."""
    scheme, _, name = _tables.innermost(process.device).partition(":")
    copies = scheme != "packet"
    address = process.address.partition("/")[0]
    try:
        socket.inet_aton(address)
    except OSError:
        raise click.ClickException(
            f"pid {process.pid}: its statistics file has a wrong address: {address!r}"
        ) from None
    ports = frozenset(flow.local_port for flow in process.flows)
    known = not copies and host.is_local(address) and len(process.flows) < _FLOWS_SHOWN
    connections = frozenset(map(_connection, filter(narrowed.takes, process.flows)))
    return Target(
        "" if copies else name,
        address,
        ports if known else None,
        peers=frozenset(narrowed.hosts),
        either_ports=frozenset(narrowed.ports),
        connections=connections if narrowed.flows else None,
        direction=narrowed.direction,
        expression=narrowed.expression,
    )


def _connection(flow: Flow) -> Connection:
    return Connection(flow.local_port, flow.peer_address, flow.peer_port)


@dataclass
class Capture:
    """Captures one process's frames until it is stopped or `count` or `seconds` is reached (0: no
    bound)."""

    process: Process
    narrowed: Narrowed
    wanted: Target
    snaplen: int
    buffer: int  # bytes
    count: int
    seconds: float
    stop: Stop = field(default_factory=Stop)
    taken: int = 0
    cut: int = 0  # of those taken, kept shorter than snaplen asks
    lost: int = 0
    hurries: bool = False

    def _program(self) -> list[Instruction]:
        kept = min(self.snaplen, _HEADERS) if self.hurries else self.snaplen
        wanted = self.wanted
        if not wanted.interface:
            wanted = replace(wanted, direction=None)  # copies have no packet type
        try:
            return capture_filter.program(wanted, kept)
        except ValueError as wrong:
            raise click.ClickException(str(wrong)) from wrong

    def _follow(self, ring: Source) -> None:
        """Renews the filter for the process's present flows."""
        try:
            now = target(statfile.read(Path(self.process.path)), self.narrowed)
        except (OSError, statfile.StatError, click.ClickException):
            return  # the process has ended; its last frames may still arrive
        if now != self.wanted:
            self.wanted = replace(now, interface=self.wanted.interface)
            ring.filter(self._program())

    def _open(self) -> Source:
        if not self.wanted.interface:
            try:
                return FrameSockets(self.process, self._program(), self.wanted.direction)
            except CaptureRefused as refused:
                raise click.ClickException(str(refused)) from None
        try:
            return PacketRing(self.wanted.interface, self._program(), self.buffer)
        except PermissionError as refused:
            raise click.ClickException(
                f"cannot open a packet socket: {refused}; capture needs CAP_NET_RAW: run as root"
            ) from refused
        except OSError as failure:
            raise click.ClickException(
                f"{self.wanted.interface}: {failure}; is it an interface of this network namespace?"
            ) from failure

    def _write(self, block: list[Frame], files: CaptureFiles) -> None:
        for frame in block[: self.count - self.taken] if self.count else block:
            files.add(frame)
            self.taken += 1
            self.cut += len(frame.data) < min(frame.length, self.snaplen)
        files.flush()

    def _hurry(self, ring: Source, on: bool) -> None:
        """Keeps only headers (`on`) while frames arrive faster than they are written. A truncated
        frame is more useful than a lost one."""
        if on != self.hurries and self.snaplen > _HEADERS:
            self.hurries = on
            ring.filter(self._program())

    def _is_full(self) -> bool:
        return bool(self.count) and self.taken >= self.count

    def run(self, files: CaptureFiles) -> None:
        """Records until the end. Raises ClickException if it cannot capture on the interface,
        OSError if it cannot write a file."""
        ring = self._open()
        try:
            self._record(ring, files)
        finally:
            self.lost += ring.lost()
            ring.close()

    def _record(self, ring: Source, files: CaptureFiles) -> None:
        end = time.monotonic() + self.seconds if self.seconds else float("inf")
        follow_at = time.monotonic() + _REFRESH_S
        while not self.stop.requested and not self._is_full() and time.monotonic() < end:
            if time.monotonic() >= follow_at:
                self._follow(ring)
                follow_at = time.monotonic() + _REFRESH_S
            for block in ring.blocks(_WAIT_S):
                self._write(block, files)
                if ring.holds(max(1, ring.size // _BEHIND)):
                    self._hurry(ring, True)
            if not ring.holds(1):
                self._hurry(ring, False)
        # Stop new frames, then wait for the block that the kernel was filling.
        ring.filter(capture_filter.NOTHING)
        before = -1
        while not self._is_full() and self.taken > before:
            before = self.taken
            for block in ring.blocks(3 * RETIRE_MS / 1000):
                self._write(block, files)


def _choose(
    pids: tuple[int, ...], ranks: tuple[int, ...], ids: tuple[str, ...], devices: tuple[str, ...]
) -> Process:
    try:
        processes = statfile.chosen(statfile.scan(), pids, ranks, ids, devices)
    except LookupError as missing:
        raise click.ClickException(str(missing.args[0])) from missing
    if not processes:
        raise click.ClickException(statfile.nobody())
    if len(processes) > 1:
        listed = "\n".join(map(_listed, processes))
        several = (
            "the process uses several NICs"
            if len(statfile.grouped(processes)) == 1
            else "several processes use HARP"
        )
        raise click.UsageError(f"{several}; name one of\n{listed}")
    return processes[0]


def _listed(process: Process) -> str:
    rank = "" if process.rank is None else f"--rank {process.rank}  "
    return (
        f"  --id {process.id}  {rank}--pid {process.pid}  --device {process.device}  "
        f"{process.command} on {process.host}"
    )


class _Flow(click.ParamType):
    name = "flow"

    def convert(
        self, value: Any, param: Optional[click.Parameter], context: Optional[click.Context]
    ) -> tuple[int, Optional[int]]:
        if isinstance(value, tuple):
            return value
        matched = re.fullmatch(r"(\d+)(?:\.(\d+))?", value)
        if not matched:
            self.fail(f"{value!r} is neither LINK nor LINK.FLOW", param, context)
        return int(matched[1]), int(matched[2]) if matched[2] else None


def _remedy(one: Capture) -> str:
    """What keeps frames from being lost."""
    more = (
        "a larger --buffer"
        if one.wanted.interface
        else "--direction or --flow (net.core.wmem_max limits what may wait)"
    )
    return f"use --snaplen {_HEADERS} to keep only headers, or {more}"


def _summary(one: Capture, written: list[Path]) -> str:
    where = f"{written[0]} to {written[-1].name}" if len(written) > 1 else str(written[0])
    said = f"{where}: {one.taken} frames, {one.lost} lost because this program was too slow"
    if one.cut:
        said += f"; {one.cut} truncated to {_HEADERS} bytes for the same reason"
    if one.lost:
        share = 100 * one.lost / (one.lost + one.taken)
        said += f". {share:.1f} % are lost: {_remedy(one)}"
    return said


def _compiled(expression: str) -> tuple[Instruction, ...]:
    try:
        return tuple(pcap_filter.compiled(expression)) if expression else ()
    except ValueError as wrong:
        raise click.UsageError(f"{expression!r}: {wrong}; see man pcap-filter") from wrong
    except LookupError as missing:
        raise click.ClickException(str(missing.args[0])) from missing


@click.command()
@click.argument("expression", nargs=-1)
@click.option(
    "-w",
    "--write",
    "output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The pcapng file; - is standard output.",
)
@click.option(
    "--pid", "pids", type=int, multiple=True, help="The process [the only one with HARP]."
)
@click.option("--rank", "ranks", type=int, multiple=True, help="The process, by its rank.")
@click.option(
    "--id", "ids", multiple=True, help="The process, by its id in `harp stat` or a prefix of it."
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    help="The NIC, such as eth1 [the only one of the process].",
)
@click.option(
    "-c", "--count", type=click.IntRange(0), default=0, help="Stop after this number of frames."
)
@click.option(
    "--seconds", type=click.FloatRange(0), default=0.0, help="Stop after this time [at Ctrl-C]."
)
@click.option(
    "-s",
    "--snaplen",
    type=click.IntRange(14, _SNAPLEN),
    default=_SNAPLEN,
    metavar="BYTES",
    help=f"Keep the first BYTES of each frame [all]; {_HEADERS} holds all headers.",
)
@click.option(
    "--host",
    "hosts",
    type=Address(),
    multiple=True,
    metavar="ADDRESS",
    help="Only frames from or to this peer; repeat for more.",
)
@ports_option("TCP")
@click.option(
    "--flow",
    "flows",
    type=_Flow(),
    multiple=True,
    metavar="LINK[.FLOW]",
    help="Only this link, or this flow of it, numbered as in `harp stat`; repeat for more.",
)
@click.option(
    "--direction", type=click.Choice(["in", "out"]), help="Only received frames, or only sent ones."
)
@click.option(
    "-C",
    "--file-size",
    type=click.FloatRange(0.001),
    metavar="MB",
    help="Start a new file after this number of megabytes: FILE-0, FILE-1 ...",
)
@click.option(
    "-W",
    "--files",
    "file_count",
    type=click.IntRange(1),
    metavar="N",
    help="With --file-size: keep the newest N files.",
)
@click.option(
    "--buffer",
    type=click.IntRange(2, 2047),
    default=128,
    show_default=True,
    metavar="MiB",
    help="Kernel memory for frames not written yet, on packet devices.",
)
def capture(
    expression: tuple[str, ...],
    output: Path,
    pids: tuple[int, ...],
    ranks: tuple[int, ...],
    ids: tuple[str, ...],
    devices: tuple[str, ...],
    count: int,
    seconds: float,
    snaplen: int,
    hosts: tuple[str, ...],
    ports: tuple[int, ...],
    flows: tuple[tuple[int, Optional[int]], ...],
    direction: Optional[str],
    file_size: Optional[float],
    file_count: Optional[int],
    buffer: int,
) -> None:
    """Record the frames of a running process's flows, for Wireshark or tshark.

    Needs CAP_NET_RAW on packet devices, and the process's user or root on all
    others. Records one NIC of the process: run it once for each NIC. TSO segments
    appear whole, and checksums that the device completes appear wrong.

    --host, --port, --flow and --direction select frames. A frame must fit each of
    these options, and one of the values of a repeated option. For example,
    `--flow 3.0 --flow 3.1 --direction in` selects the frames received on two flows of
    link 3.

    EXPRESSION selects further, as in tcpdump: 'tcp[tcpflags] & tcp-rst != 0'. It
    needs libpcap.

    If frames arrive faster than they can be written, only their headers are kept.
    Ctrl-C ends the capture, which then prints how many frames were recorded,
    truncated and lost.
    """
    if file_count and not file_size:
        raise click.UsageError("--files needs --file-size")
    to_stdout = str(output) == STDOUT
    if to_stdout and file_size:
        raise click.UsageError("--file-size needs a file: standard output has no end")
    if to_stdout and sys.stdout.isatty():
        raise click.UsageError("-w - writes packets, and standard output is a terminal: use a pipe")
    narrowed = Narrowed(hosts, ports, flows, direction, _compiled(" ".join(expression)))
    process = _choose(pids, ranks, ids, devices)
    wanted = target(process, narrowed)
    if flows and not wanted.connections:
        raise click.ClickException(f"pid {process.pid} has no such flow now; see harp stat")
    if not wanted.interface and asks_for_length(narrowed.expression):
        raise click.ClickException(
            f"pid {process.pid} uses {process.device}, whose frames are cut before the filter: an "
            "expression with a frame's length (len, less, greater) works on packet devices only"
        )
    one = Capture(process, narrowed, wanted, snaplen, buffer << 20, count, seconds)
    comment = f"harp capture: pid {process.pid}, {process.device}, {process.address}"
    try:
        with (
            one.stop.listening(),
            CaptureFiles(
                output, comment, snaplen, int((file_size or 0) * 1e6), file_count or 0
            ) as files,
        ):
            one.run(files)
    except BrokenPipeError:
        pass  # the reader of standard output has seen enough
    except OSError as failure:
        raise click.ClickException(f"{output}: {failure}") from failure
    click.echo(_summary(one, files.written), err=to_stdout)
