# SPDX-License-Identifier: Apache-2.0
"""The ceiling: what the packet port moves when nobody speaks TCP above it.

One side sends the same 64 KiB segment over and over, the other receives and
drops: no acknowledgement, no copy to where the bytes belong, no window.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List

from harp.measure.records import Record, make_record
from harp.paths import build_dir
from harp.testing.lab import Host, Lab, LabError

HEADERS = 14 + 20 + 32  # Ethernet, IPv4, TCP with timestamps
TCP_START = 14 + 20
TCP_CHECKSUM = 16  # from there
LEAD_MS = 100  # the sender runs so much longer than the receiver measures, at each end


def _probe() -> Path:
    program = build_dir() / "dpdk_glue" / "ports_probe"
    if not program.is_file():
        raise FileNotFoundError(
            f"{program} is not there: build it with meson compile -C {build_dir()}"
        )
    return program


def _sum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _segment(sender: Host, receiver: Host, payload: int) -> bytes:
    """A large segment whose checksum is left to the device."""
    addresses = socket.inet_aton(sender.own_address) + socket.inet_aton(receiver.own_address)
    pseudo = _sum(addresses + struct.pack("!BBH", 0, 6, 32 + payload))
    tcp = struct.pack("!HHIIBBHHH", 50000, 50001, 1, 1, 0x80, 0x10, 65535, pseudo, 0)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 52 + payload, 0, 0, 64, 6, 0) + addresses
    ip = ip[:10] + struct.pack("!H", _sum(ip) ^ 0xFFFF) + ip[12:]
    macs = bytes.fromhex((receiver.mac + sender.mac).replace(":", ""))
    return macs + b"\x08\x00" + ip + tcp + b"\x01\x01\x08\x0a" + bytes(8 + payload)


def _drive(host: Host, *commands: str) -> "subprocess.Popen[str]":
    opened = f"open packet:{host.interface} 1 {host.own_address}/{host.prefix} 0 0-0 -"
    process = host.popen([_probe()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    process.stdin.write("".join(f"{line}\n" for line in (opened, *commands)))
    process.stdin.flush()
    return process


def _answers(process: "subprocess.Popen[str]", seconds: float) -> List[Dict[str, Any]]:
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise LabError(f"the ports' probe did not end within {seconds} s") from None
    lines = said.splitlines()
    failed = [line for line in lines if not line.startswith("ok {")]
    if failed or not lines:
        raise LabError(f"the ports' probe: {failed[0] if failed else 'it said nothing'}")
    return [json.loads(line[3:]) for line in lines]


def run_raw(lab: Lab, seconds: float, pair: int) -> Record:
    """Large segments from host 0 to host 1. LabError if the port fails."""
    sender, receiver = lab.hosts[:2]
    mss = lab.wire.mtu - 52
    payload = 65000 - 65000 % mss
    milliseconds = int(seconds * 1000)
    frame = _segment(sender, receiver, payload)
    receiving = _drive(receiver, f"drain 0 {milliseconds} {HEADERS} {payload}")
    time.sleep(LEAD_MS / 1000)
    sending = _drive(
        sender,
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
