# SPDX-License-Identifier: Apache-2.0
"""A port in its own process, and frames to send through it."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.hosts.lab import Host

ROOT = Path(__file__).resolve().parents[2]
PROBE = Path(os.environ.get("HARP_BUILD_DIR") or ROOT / "build") / "dpdk_glue" / "ports_probe"

ETHERNET = 14
HEADERS = 66  # Ethernet, IPv4, TCP with a timestamp option
CHECKSUM_START = 34
CHECKSUM_OFFSET = 16
BROADCAST = "ff:ff:ff:ff:ff:ff"


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _sum(data: bytes) -> int:
    """The ones' complement sum of 16-bit words (RFC 1071), not inverted."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _pseudo(src: str, dst: str, length: int) -> bytes:
    return socket.inet_aton(src) + socket.inet_aton(dst) + struct.pack("!BBH", 0, 6, length)


@dataclass
class Frame:
    """A TCP segment to send, with the checksum field that a device with checksum offload needs."""

    src: str
    dst: str
    sport: int
    dport: int
    payload: bytes = b""
    src_mac: str = "02:77:00:00:00:01"
    dst_mac: str = "02:77:00:00:00:02"
    seq: int = 1
    flags: int = 0x10
    options: bytes = b"\x01\x01\x08\x0a" + bytes(8)
    fragment: int = 0
    ttl: int = 64
    complete: bool = False  # the checksum is complete, without offload
    trailer: int = 0  # bytes behind the IPv4 packet; below 0, so many bytes of it are missing

    @property
    def header_length(self) -> int:
        return ETHERNET + 20 + 20 + len(self.options)

    def __bytes__(self) -> bytes:
        tcp_length = 20 + len(self.options) + len(self.payload)
        offset = (20 + len(self.options)) // 4 << 4
        tcp = bytearray(
            struct.pack(
                "!HHIIBBHHH", self.sport, self.dport, self.seq, 1, offset, self.flags, 65535, 0, 0
            )
            + self.options
        )
        pseudo = _sum(_pseudo(self.src, self.dst, tcp_length))
        struct.pack_into("!H", tcp, 16, pseudo)
        if self.complete:
            struct.pack_into("!H", tcp, 16, _sum(bytes(tcp) + self.payload) ^ 0xFFFF)
        ip = bytearray(
            struct.pack(
                "!BBHHHBBH4s4s", 0x45, 0, 20 + tcp_length, 0, self.fragment, self.ttl, 6, 0,
                socket.inet_aton(self.src), socket.inet_aton(self.dst),
            )
        )  # fmt: skip
        struct.pack_into("!H", ip, 10, _sum(bytes(ip)) ^ 0xFFFF)
        ethernet = _mac(self.dst_mac) + _mac(self.src_mac) + b"\x08\x00"
        packet = bytes(ip) + bytes(tcp) + self.payload
        return ethernet + packet[: len(packet) + self.trailer] + b"\xee" * self.trailer


def arp_request(src_mac: str, src: str, dst: str) -> bytes:
    """The frame of an ARP request for dst."""
    return (
        _mac(BROADCAST) + _mac(src_mac) + b"\x08\x06"
        + struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1)
        + _mac(src_mac) + socket.inet_aton(src) + bytes(6) + socket.inet_aton(dst)
    )  # fmt: skip


def icmp_unreachable(src: str, dst: str, src_mac: str, dst_mac: str, quoted: Frame) -> bytes:
    """The frame of an ICMP host unreachable from src to dst that quotes a segment."""
    body = struct.pack("!BBHI", 3, 1, 0, 0) + bytes(quoted)[ETHERNET : ETHERNET + 28]
    body = body[:2] + struct.pack("!H", _sum(body) ^ 0xFFFF) + body[4:]
    ip = bytearray(
        struct.pack(
            "!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 0, 0, 64, 1, 0,
            socket.inet_aton(src), socket.inet_aton(dst),
        )
    )  # fmt: skip
    struct.pack_into("!H", ip, 10, _sum(bytes(ip)) ^ 0xFFFF)
    return _mac(dst_mac) + _mac(src_mac) + b"\x08\x00" + bytes(ip) + body


def checksum_ok(frame: bytes) -> bool:
    """Whether a TCP frame's checksum is complete and right."""
    ihl = (frame[ETHERNET] & 15) * 4
    end = ETHERNET + struct.unpack_from("!H", frame, ETHERNET + 2)[0]
    segment = frame[ETHERNET + ihl : end]
    src, dst = frame[ETHERNET + 12 : ETHERNET + 16], frame[ETHERNET + 16 : ETHERNET + 20]
    return _sum(src + dst + struct.pack("!BBH", 0, 6, len(segment)) + segment) == 0xFFFF


def sequence_of(frame: bytes) -> int:
    return int(struct.unpack_from("!I", frame, ETHERNET + 20 + 4)[0])


@dataclass(frozen=True)
class Received:
    """A received frame with the port's metadata. place: the payload's offset in the hinted buffer,
    -1 if it is elsewhere."""

    header_length: int
    payload_length: int
    segment: int
    good: bool
    place: int
    data: bytes


def payload_of(frames: list[Received], header: int = HEADERS) -> bytes:
    """The payloads of the frames, joined. header: the length of each frame's headers in bytes."""
    return b"".join(frame.data[header:] for frame in frames)


class PortError(Exception):
    """The port returned an error: `number` is the errno, the text its error line."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


@dataclass
class Probe:
    """A process with a port (two, for both ends of a wire); see probe.c."""

    host: Host | None = None
    wrapper: tuple[str, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        command = [*self.wrapper, str(PROBE)]
        if self.host:
            command = self.host.command(command)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def start(self, command: str) -> None:
        """Sends a command; `finish` reads its answer."""
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def finish(self) -> tuple[list[str], str]:
        """Reads an answer: (the lines before it, the text after "ok"). Raises PortError."""
        assert self.process.stdout
        lines = []
        for line in self.process.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "ok":
                return lines, rest
            if word == "error":
                number, _, text = rest.partition(" ")
                raise PortError(int(number), text)
            lines.append(line)
        raise AssertionError(f"the probe ended with {self.process.wait(5)}")

    def do(self, command: str) -> str:
        self.start(command)
        return self.finish()[1]

    def open(
        self,
        device: str,
        queues: int = 1,
        address: str = "-",
        mtu: int = 0,
        ports: str = "0-0",
        mac: str = "-",
    ) -> dict[str, Any]:
        """Opens the port. Returns its info."""
        info = json.loads(self.do(f"open {device} {queues} {address} {mtu} {ports} {mac}"))
        self.info = dict(info)
        return self.info

    def send(
        self,
        frame: Frame | bytes,
        queue: int = 0,
        segment: int = 0,
        pieces: int = 1,
        flush: bool = True,
    ) -> None:
        """Transmits a frame with its payload in pieces. Raises PortError (EAGAIN: full)."""
        data = bytes(frame)
        offload = isinstance(frame, Frame) and not frame.complete
        header = frame.header_length if isinstance(frame, Frame) else len(data)
        sums = f"{CHECKSUM_START} {CHECKSUM_OFFSET} 1" if offload else "0 0 0"
        self.do(f"send {queue} {header} {segment} {sums} {pieces} {data.hex()}")
        if flush:
            self.do(f"flush {queue}")

    def receive(
        self,
        most: int = 1,
        timeout: float = 20.0,
        queue: int = 0,
        hint: tuple[int, int, int] = (0, 0, 0),
        second: tuple[int, int, int] = (0, 0, 0),
    ) -> list[Received]:
        """Receives up to `most` frames within `timeout` seconds. hint: header, length and stride in
        bytes. second: gap, place and length of the second place of the hint."""
        values = (queue, most, int(timeout * 1000), *hint, *second)
        self.start("receive %d %d %d %d %d %d %d %d %d" % values)
        frames = []
        for line in self.finish()[0]:
            fields = line.split()
            numbers = [int(word) for word in fields[1:6]]
            data = bytes.fromhex(fields[6]) if len(fields) > 6 else b""
            frames.append(
                Received(numbers[0], numbers[1], numbers[2], bool(numbers[3]), numbers[4], data)
            )
        return frames

    def receive_all(self, expected: int) -> list[Received]:
        """Receives frames until `expected` have arrived, within 5 s, and more ones for a moment."""
        return self.receive(expected, 5.0) + self.receive(8, 0.1)

    def receive_bytes(self, size: int) -> list[Received]:
        """Receives frames until their payload has `size` bytes, or no more arrive for 5 s."""
        frames: list[Received] = []
        while len(payload_of(frames)) < size:
            more = self.receive(32, 0.1) or self.receive(1, 5)
            if not more:
                break
            frames += more
        return frames

    def receives_no_frame(self, queue: int = 0, timeout: float = 0.2) -> bool:
        return not self.receive(1, timeout, queue)

    def arm(self, asleep: bool, queue: int = 0) -> bool:
        return self.do(f"arm {queue} {int(asleep)}") == "1"

    def wait(self, timeout: float, queue: int = 0) -> bool:
        """Whether the descriptor becomes readable within `timeout` seconds."""
        return self.do(f"wait {queue} {int(timeout * 1000)}") == "1"

    def reserve(self, queue: int = 0, wanted: int = 0) -> int:
        return int(self.do(f"reserve {queue} {wanted}"))

    def release(self, local: int, queue: int = 0) -> None:
        self.do(f"release {queue} {local}")

    def count(self, queue: int = 0) -> dict[str, int]:
        return dict(json.loads(self.do(f"count {queue}")))

    def descriptors(self) -> int:
        """The number of the process's open descriptors."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def end(self) -> int:
        """Closes the port and the process. Returns the exit status."""
        assert self.process.stdin and self.process.stdout
        if self.process.poll() is None:
            self.process.stdin.close()
        try:
            status = self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("the probe did not end by itself") from None
        finally:
            self.process.stdout.close()
        return status
