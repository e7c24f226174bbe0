# SPDX-License-Identifier: Apache-2.0
"""The upper bound of a port's speed: the port without TCP.

One side sends the same segment repeatedly, the other receives and drops it, without
acknowledgements or a window. The receiver copies only on request. Segments have 64 KiB with TSO,
else one frame.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

from harp.paths import build_dir
from tools.hosts.lab import Host, Lab, LabError
from tools.measure.records import Record, make_record
from tools.measure.shared import SharedLink, sides

HEADERS = 14 + 20 + 32  # Ethernet, IPv4, TCP with timestamps
TCP_START = 14 + 20
TCP_CHECKSUM = 16  # offset from TCP_START
LEAD_MS = 100  # the sender starts earlier and ends later than the receiver, by this time
CONNECT_MS = 3000  # the same for two processes with DPDK, which take time to start and connect


def _probe() -> Path:
    program = build_dir() / "dpdk_glue" / "ports_probe"
    if not program.is_file():
        raise FileNotFoundError(
            f"{program} is missing: build it with meson compile -C {build_dir()}"
        )
    return program


def _sum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _segment(sender: Host, receiver: Host, payload: int) -> bytes:
    """A segment with the checksum left to the device. Without checksum offload it stays wrong, and
    the receiver does not check it."""
    addresses = socket.inet_aton(sender.own_address) + socket.inet_aton(receiver.own_address)
    pseudo = _sum(addresses + struct.pack("!BBH", 0, 6, 32 + payload))
    tcp = struct.pack("!HHIIBBHHH", 50000, 50001, 1, 1, 0x80, 0x10, 65535, pseudo, 0)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 52 + payload, 0, 0, 64, 6, 0) + addresses
    ip = ip[:10] + struct.pack("!H", _sum(ip) ^ 0xFFFF) + ip[12:]
    macs = bytes.fromhex((receiver.mac + sender.mac).replace(":", ""))
    return macs + b"\x08\x00" + ip + tcp + b"\x01\x01\x08\x0a" + bytes(8 + payload)


def _drive(host: Host, device: str, mtu: int, *commands: str) -> "subprocess.Popen[str]":
    opened = f"open {device} 1 {host.own_address}/{host.prefix} {mtu} 0-0 -"
    process = host.popen([_probe()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    process.stdin.write("".join(f"{line}\n" for line in (opened, *commands)))
    process.stdin.flush()
    return process


def _answers(process: "subprocess.Popen[str]", seconds: float) -> List[Dict[str, Any]]:
    """The JSON answers of the probe. Raises LabError if it failed."""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise LabError(f"the ports' probe did not end within {seconds} s") from None
    return _accepted(said)


def _accepted(said: str) -> List[Dict[str, Any]]:
    """The JSON answers in the probe's output. Raises LabError if it refused a command."""
    lines = said.splitlines()
    failed = [line for line in lines if not line.startswith("ok")]
    if failed or not lines:
        raise LabError(f"the ports' probe: {failed[0] if failed else 'it printed nothing'}")
    return [json.loads(line[3:]) for line in lines if line.startswith("ok {")]


def run_raw(lab: Lab, seconds: float, pair: int) -> Record:
    """Sends large segments from host 0 to host 1. Raises LabError if the port fails."""
    sender, receiver = lab.hosts[:2]
    mss = lab.wire.mtu - 52
    payload = 65000 - 65000 % mss
    milliseconds = int(seconds * 1000)
    frame = _segment(sender, receiver, payload)
    receiving = _drive(
        receiver,
        f"packet:{receiver.interface}",
        0,
        f"drain 0 {milliseconds} {HEADERS} {payload}",
    )
    time.sleep(LEAD_MS / 1000)
    sending = _drive(
        sender,
        f"packet:{sender.interface}",
        0,
        f"blast 0 {milliseconds + 2 * LEAD_MS} {HEADERS} {mss} {TCP_START} {TCP_CHECKSUM} "
        f"{frame.hex()}",
    )
    received = _answers(receiving, seconds + 20)[-1]
    _answers(sending, seconds + 20)
    rate = received["bytes"] / received["ms"] / 1e6
    return make_record(
        wire=lab.wire.name,
        transport="raw",
        op="sendrecv",
        direction="0->1",
        nranks=2,
        mtu=lab.wire.mtu,
        offloads="all" if lab.wire.offloads else "none",
        pair=pair,
        algbw_gbs=rate,
        busbw_gbs=rate,
    )


def run_raw_shared(
    lab: Lab, link: SharedLink, direction: str, copy: bool, seconds: float, pair: int
) -> Record:
    """Sends segments from host 0 to host 1 over a link of shared memory. copy: the receiver copies
    them into its own buffer, as an application would. Raises LabError if a port fails."""
    sender, receiver = lab.hosts[:2]
    mss = link.mtu - 52
    payload = 65000 - 65000 % mss if link.segments else mss
    sums = f"{TCP_START} {TCP_CHECKSUM}" if link.segments else "0 0"
    milliseconds = int(seconds * 1000)
    frame = _segment(sender, receiver, payload).hex()
    with tempfile.TemporaryDirectory(prefix="harp-raw-") as folder:
        devices = [link.device(side, Path(folder) / "vhost") for side in sides(direction)]
        receiving = _drive(
            receiver, devices[1], link.mtu, f"drain 0 {milliseconds} 0 0 {int(copy)}"
        )
        sending = _drive(
            sender,
            devices[0],
            link.mtu,
            "dma_map",
            f"blast 0 {milliseconds + CONNECT_MS} {HEADERS} {mss if link.segments else 0} {sums} "
            f"{frame}",
        )
        received = _answers(receiving, seconds + 30)[-1]
        sending.kill()
        _accepted(sending.communicate()[0])
    rate = received["bytes"] / max(received["ms"], 1) / 1e6
    return {
        **make_record(
            transport="raw", op="sendrecv", nranks=2, pair=pair, algbw_gbs=rate, busbw_gbs=rate
        ),
        **link.facts(),
        "direction": direction,
        "copy": copy,
    }
