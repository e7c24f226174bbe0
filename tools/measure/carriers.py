# SPDX-License-Identifier: Apache-2.0
"""Who carried the bytes: the kernel's own count of what it sent, held against a capture.

The kernel counts every TCP segment that it sends: TcpOutSegs, and those that it
sends again in TcpRetransSegs. While HARP moves the data, all that the kernels
may have sent is the control connection over which the ranks meet; a capture on
the wire shows how many segments that was, and on which ports the rest went.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Dict, Iterator, List, Optional, Tuple, Type

from tools.hosts.lab import Lab, LabError

SNAP = 120  # bytes of a frame that a capture keeps: all headers
CAPTURE_BUFFER_KIB = 65536
GLOBAL_HEADER = 24
RECORD = struct.Struct("<IIII")
ETHERNET = 14
TCP = 6


@dataclass(frozen=True)
class Segment:
    """One captured TCP frame; a large one that a device would cut counts once."""

    source: str
    source_port: int
    target: str
    target_port: int
    payload: int  # bytes


def read_capture(data: bytes) -> Iterator[Segment]:
    """The TCP frames of a file that tcpdump wrote (microseconds, Ethernet)."""
    at = GLOBAL_HEADER
    while at + RECORD.size <= len(data):
        _, _, kept, _ = RECORD.unpack_from(data, at)
        frame = data[at + RECORD.size : at + RECORD.size + kept]
        at += RECORD.size + kept
        segment = _parse(frame)
        if segment:
            yield segment


def _parse(frame: bytes) -> Optional[Segment]:
    if len(frame) < ETHERNET + 40 or frame[12:14] != b"\x08\x00" or frame[23] != TCP:
        return None
    ip = frame[ETHERNET:]
    header = (ip[0] & 15) * 4
    total = int.from_bytes(ip[2:4], "big")
    tcp = ip[header:]
    if len(tcp) < 20:
        return None
    source_port, target_port = struct.unpack_from("!HH", tcp)
    source, target = (".".join(map(str, ip[i : i + 4])) for i in (12, 16))
    return Segment(source, source_port, target, target_port, total - header - (tcp[12] >> 4) * 4)


@dataclass(frozen=True)
class Sent:
    """A kernel's count of the TCP segments that it has sent, and of the resets among them."""

    segments: int
    resets: int

    def since(self, then: Sent) -> Sent:
        return Sent(self.segments - then.segments, self.resets - then.resets)


@dataclass
class Carriers:
    """What was seen while a row ran."""

    kernel_segments: List[int]  # by host: how far the kernel's count moved
    kernel_resets: List[int]  # by host: of these, resets
    control_segments: List[int]  # by host: captured, sent on the control connection
    control_bytes: int
    data_bytes: int  # payload captured on all other ports
    data_ports: Dict[Tuple[str, int], int] = field(default_factory=dict)  # payload sent, by end
    lost: int = 0  # frames that the captures missed

    def kernel_only_controlled(self) -> bool:
        """Whether the control connection is all that the kernels sent."""
        return self.kernel_segments == self.control_segments

    def kernel_text(self) -> str:
        """One clause a host: what its kernel sent, and what of it is accounted for."""
        return ", ".join(
            f"host {i} +{moved} (control {control}{f', resets {resets}' if resets else ''})"
            for i, (moved, control, resets) in enumerate(
                zip(self.kernel_segments, self.control_segments, self.kernel_resets)
            )
        )

    def capture_text(self) -> str:
        """One clause: bytes, and the ends that sent most of them."""
        ends = sorted(self.data_ports.items(), key=lambda item: -item[1])[:4]
        sent = ", ".join(f"{address}:{port} {size / 1e6:.1f} MB" for (address, port), size in ends)
        return (
            f"{self.data_bytes / 1e6:.1f} MB outside of the control connection ({sent}), "
            f"{self.control_bytes / 1e6:.3f} MB on it"
        )


class Watch:
    """Counts and captures during a `with` block; afterwards `seen` says what there was.

    Captures on host 0, past which every control connection goes.
    """

    def __init__(self, lab: Lab, control_port: int) -> None:
        self._lab = lab
        self._port = control_port
        self._before: List[Sent] = []
        self._folder = tempfile.TemporaryDirectory(prefix="harp-watch-")
        self._captures: List[Tuple[Path, "subprocess.Popen[str]"]] = []
        self.seen: Optional[Carriers] = None

    def __enter__(self) -> Watch:
        # Two captures: that of the control connection must not miss a frame
        # because the other one is busy.
        self._capture(f"tcp port {self._port}")
        self._capture(f"tcp and not port {self._port}")
        self._before = self._sent()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            after = self._sent()
            self._settle()
            lost = sum(self._stop(process) for _, process in self._captures)
            if kind is None:
                moved = [now.since(then) for now, then in zip(after, self._before)]
                self.seen = self._sum_up(moved, lost)
        finally:
            self._folder.cleanup()

    def _sent(self) -> List[Sent]:
        counters = [host.counters() for host in self._lab.hosts]
        return [
            Sent(count["TcpOutSegs"] + count["TcpRetransSegs"], count["TcpOutRsts"])
            for count in counters
        ]

    def _capture(self, what: str) -> None:
        host = self._lab.hosts[0]
        path = Path(self._folder.name) / f"{len(self._captures)}.pcap"
        words = [
            "tcpdump",
            "-i",
            host.interface,
            "-n",
            "-s",
            SNAP,
            "-B",
            CAPTURE_BUFFER_KIB,
            "-U",
            "--immediate-mode",
            "-Z",
            "root",
            "-w",
            "-",
            what,
        ]
        with open(path, "wb") as file:
            process = host.popen(words, stdout=file, stderr=subprocess.PIPE)
        assert process.stderr
        line = process.stderr.readline()
        if "listening on" not in line:
            raise LabError(f"tcpdump in host 0 does not start: {line}{process.stderr.read()}")
        self._captures.append((path, process))

    def _settle(self) -> None:
        """Waits, at most 5 s, until tcpdump has written out what it has seen."""
        sizes: List[int] = []
        for _ in range(50):
            now = [path.stat().st_size for path, _ in self._captures]
            if now == sizes:
                return
            sizes = now
            time.sleep(0.1)

    @staticmethod
    def _stop(process: "subprocess.Popen[str]") -> int:
        """Ends a capture; how many frames it missed."""
        process.terminate()
        _, said = process.communicate(timeout=20)
        for line in said.splitlines():
            if line.endswith("dropped by kernel"):
                return int(line.split()[0])
        return 0

    def _sum_up(self, moved: List[Sent], lost: int) -> Carriers:
        control, data = (list(read_capture(path.read_bytes())) for path, _ in self._captures)
        ports: Dict[Tuple[str, int], int] = defaultdict(int)
        for segment in data:
            if segment.payload:
                ports[segment.source, segment.source_port] += segment.payload
        mss = self._lab.wire.mtu - 52  # IPv4, TCP, timestamps
        sent: Dict[str, int] = defaultdict(int)
        for segment in control:
            sent[segment.source] += max(1, -(-segment.payload // mss))
        return Carriers(
            kernel_segments=[sent.segments for sent in moved],
            kernel_resets=[sent.resets for sent in moved],
            control_segments=[sent[host.address] for host in self._lab.hosts],
            control_bytes=sum(segment.payload for segment in control),
            data_bytes=sum(segment.payload for segment in data),
            data_ports=dict(ports),
            lost=lost,
        )
