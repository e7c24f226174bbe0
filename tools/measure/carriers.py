# SPDX-License-Identifier: Apache-2.0
"""Shows whether HARP or the kernel carried the bytes, by kernel counters and a capture.

The kernel counts the TCP segments that it sends in TcpOutSegs, and retransmissions in
TcpRetransSegs. The kernels may send only the control connection of the ranks' rendezvous when HARP
moves the data. A capture on the wire shows the number of its segments, and the ports of the
other segments. The interface also counts frames that no packet socket sees.
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

from tools.hosts.lab import Host, Lab, LabError

SNAP = 120  # bytes kept of each frame: all headers
CAPTURE_BUFFER_KIB = 65536
GLOBAL_HEADER = 24
RECORD = struct.Struct("<IIII")
ETHERNET = 14
TCP = 6


@dataclass(frozen=True)
class Segment:
    """One captured TCP frame. A TSO frame counts once."""

    source: str
    source_port: int
    target: str
    target_port: int
    payload: int  # bytes


def read_capture(data: bytes) -> Iterator[Segment]:
    """The TCP frames of a tcpdump file (microseconds, Ethernet)."""
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
    """A kernel's count of sent TCP segments, and of the resets among them."""

    segments: int
    resets: int

    def since(self, then: Sent) -> Sent:
        return Sent(self.segments - then.segments, self.resets - then.resets)


@dataclass
class Carriers:
    """The observations during a row."""

    kernel_segments: List[int]  # by host: the increase of the kernel's count
    kernel_resets: List[int]  # by host: the resets among them
    control_segments: List[int]  # by host: captured segments sent on the control connection
    control_bytes: int
    data_bytes: int  # payload captured on all other ports
    data_ports: Dict[Tuple[str, int], int] = field(default_factory=dict)  # payload, by sending end
    lost: int = 0  # frames that the captures missed
    interface_bytes: int = 0  # of the frames at host 0's interface, both ways

    def kernel_only_controlled(self) -> bool:
        """Whether the kernels sent only the control connection."""
        return self.kernel_segments == self.control_segments

    def kernel_text(self) -> str:
        """For each host: the kernel's segments, and how many are of the control connection."""
        return ", ".join(
            f"host {i} +{moved} (control {control}{f', resets {resets}' if resets else ''})"
            for i, (moved, control, resets) in enumerate(
                zip(self.kernel_segments, self.control_segments, self.kernel_resets)
            )
        )

    def capture_text(self) -> str:
        """The captured bytes, and the ends that sent the most of them."""
        ends = sorted(self.data_ports.items(), key=lambda item: -item[1])[:4]
        sent = ", ".join(f"{address}:{port} {size / 1e6:.1f} MB" for (address, port), size in ends)
        return (
            f"{self.data_bytes / 1e6:.1f} MB outside the control connection ({sent}), "
            f"{self.control_bytes / 1e6:.3f} MB on it"
        )


class Watch:
    """Counts and captures during a `with` block; `seen` has the result afterwards.

    It captures the control connections where they are sent, because an interface with an XDP
    program may drop frames of a full queue on arrival. It captures all else on host 0.
    control_ports: of the connections of the kernels.
    """

    def __init__(self, lab: Lab, *control_ports: int) -> None:
        self._lab = lab
        self._control = " or ".join(f"port {port}" for port in control_ports)
        self._bytes_before = 0
        self._before: List[Sent] = []
        self._folder = tempfile.TemporaryDirectory(prefix="harp-watch-")
        self._captures: List[Tuple[Path, "subprocess.Popen[str]"]] = []
        self.seen: Optional[Carriers] = None

    def __enter__(self) -> Watch:
        # A capture of its own for the control connection does not lose frames to the busy one.
        self._capture(self._lab.hosts[0], f"tcp and not ({self._control})")
        for host in self._lab.hosts:
            self._capture(host, f"tcp and src host {host.address} and ({self._control})")
        self._before = self._sent()
        self._bytes_before = self._interface_bytes()
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

    def _interface_bytes(self) -> int:
        host = self._lab.hosts[0]
        folder = f"/sys/class/net/{host.interface}/statistics"
        return sum(int(host.read(f"{folder}/{way}_bytes")) for way in ("rx", "tx"))

    def _capture(self, host: Host, what: str) -> None:
        path = Path(self._folder.name) / f"{len(self._captures)}.pcap"
        args = [
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
            process = host.popen(args, stdout=file, stderr=subprocess.PIPE)
        assert process.stderr
        line = process.stderr.readline()
        if "listening on" not in line:
            raise LabError(
                f"tcpdump in host {host.index} does not start: {line}{process.stderr.read()}"
            )
        self._captures.append((path, process))

    def _settle(self) -> None:
        """Waits up to 5 s until tcpdump has written all captured frames."""
        sizes: List[int] = []
        for _ in range(50):
            now = [path.stat().st_size for path, _ in self._captures]
            if now == sizes:
                return
            sizes = now
            time.sleep(0.1)

    @staticmethod
    def _stop(process: "subprocess.Popen[str]") -> int:
        """Ends a capture. Returns the number of missed frames."""
        process.terminate()
        _, said = process.communicate(timeout=20)
        for line in said.splitlines():
            if line.endswith("dropped by kernel"):
                return int(line.split()[0])
        return 0

    def _sum_up(self, moved: List[Sent], lost: int) -> Carriers:
        data, *sent_by = (list(read_capture(path.read_bytes())) for path, _ in self._captures)
        control = [segment for segments in sent_by for segment in segments]
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
            interface_bytes=self._interface_bytes() - self._bytes_before,
        )
