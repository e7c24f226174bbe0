# SPDX-License-Identifier: Apache-2.0
"""Reads what running processes publish: their counters and their flows.

The files describe themselves (see harp/engine/statfile.h), so files of other
releases can be read too. Reading disturbs nobody.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

DEFAULT_FOLDER = Path("/usr/local/tfabric/tools/run")

_MAGIC = b"HARPSTAT"
_VERSION = 1
_HEADER = struct.Struct("=8sIIQQIIIIIIQQQII32s64s64s256s32s512s256s")
_COUNTER = struct.Struct("=60sI")
_FLOW = struct.Struct("=IIIHBB4s4sHH11IQQQ")
_NAME = re.compile(r"[0-9a-f]{16}\.stat")

TCP_STATES = (
    "", "ESTABLISHED", "SYN-SENT", "SYN-RECEIVED", "FIN-WAIT-1", "FIN-WAIT-2", "TIME-WAIT",
    "CLOSED", "CLOSE-WAIT", "LAST-ACK", "LISTEN", "CLOSING", "SYN-RECEIVED",
)


class StatError(ValueError):
    """A file that is no statistics file of a release that this one understands."""


@dataclass(frozen=True)
class Flow:
    """A TCP connection of a link. Times in microseconds, sizes in bytes;
    `direction` "S": it sends messages, "R": it receives them, "": neither yet."""

    link: int
    flow: int
    instance: int
    direction: str
    state: str
    local: str
    peer: str
    mss: int
    cwnd: int
    ssthresh: int
    send_window: int
    receive_window: int
    in_flight: int
    srtt_us: int
    rttvar_us: int
    min_rtt_us: int
    rto_us: int
    retransmits: int
    bytes_in: int
    bytes_out: int
    opened: float


@dataclass(frozen=True)
class Process:
    """One process with HARP in it. `started` is in seconds since the epoch;
    `instances` holds each instance's counters by name."""

    path: str
    alive: bool
    pid: int
    uid: int
    started: float
    release: str
    host: str
    command: str
    device: str
    address: str
    config: str
    about: str
    kinds: dict[str, str]
    instances: list[dict[str, int]]
    flows: list[Flow]

    @property
    def totals(self) -> dict[str, int]:
        """The sum over the instances, by counter."""
        return {name: sum(one[name] for one in self.instances) for name in self.kinds}


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def _is_alive(fd: int) -> bool:
    """Whether the file's process holds its lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _endpoint(address: bytes, port: int) -> str:
    return f"{socket.inet_ntoa(address)}:{port}"


def _flow(data: mmap.mmap, offset: int) -> Optional[Flow]:
    """The entry, or None if it is free or its writer does not come to rest."""
    for _ in range(100):
        before = struct.unpack_from("=I", data, offset)[0]
        entry = data[offset:offset + _FLOW.size]
        if before % 2 == 0 and struct.unpack_from("=I", data, offset)[0] == before:
            break
    else:
        return None
    (_, state, link, flow, instance, direction, local, peer, local_port, peer_port,
     mss, cwnd, ssthresh, send_window, receive_window, in_flight, srtt, rttvar, min_rtt, rto,
     retransmits, bytes_in, bytes_out, opened) = _FLOW.unpack(entry)
    if state == 0:
        return None
    return Flow(
        link=link, flow=flow, instance=instance, direction=chr(direction) if direction else "",
        state=TCP_STATES[state] if state < len(TCP_STATES) else str(state),
        local=_endpoint(local, local_port), peer=_endpoint(peer, peer_port), mss=mss, cwnd=cwnd,
        ssthresh=ssthresh, send_window=send_window, receive_window=receive_window,
        in_flight=in_flight, srtt_us=srtt, rttvar_us=rttvar, min_rtt_us=min_rtt, rto_us=rto,
        retransmits=retransmits, bytes_in=bytes_in, bytes_out=bytes_out, opened=opened / 1e9)


def _parse(path: Path, data: mmap.mmap, alive: bool) -> Process:
    if len(data) < _HEADER.size or data[:8] != _MAGIC:
        raise StatError(f"{path}: no statistics file of HARP's; the folder holds *.stat")
    (_, version, _, file_size, start, pid, uid, instances, counters, table, counter_size,
     instance_offset, stride, flow_offset, flow_size, flows, release, host, command, device,
     address, config, about) = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise StatError(f"{path}: format {version}, and this release reads {_VERSION}; "
                        f"use the harp of release {_text(release)}")
    if (file_size > len(data) or counter_size < _COUNTER.size or flow_size < _FLOW.size
            or table + counters * counter_size > len(data)
            or not counters or stride < counters * 8
            or instance_offset + instances * stride > len(data)
            or flow_offset + flows * flow_size > len(data)):
        raise StatError(f"{path}: its sizes contradict each other; the file is damaged")
    kinds: dict[str, str] = {}
    for i in range(counters):
        name, kind = _COUNTER.unpack_from(data, table + i * counter_size)
        kinds[_text(name)] = "gauge" if kind else "count"
    values = [
        dict(zip(kinds, struct.unpack_from(f"={counters}Q", data, instance_offset + i * stride)))
        for i in range(instances)
    ]
    entries = (_flow(data, flow_offset + i * flow_size) for i in range(flows))
    return Process(
        path=str(path), alive=alive, pid=pid, uid=uid, started=start / 1e9,
        release=_text(release), host=_text(host), command=_text(command), device=_text(device),
        address=_text(address), config=_text(config), about=_text(about), kinds=kinds,
        instances=values, flows=[entry for entry in entries if entry])


def read(path: Path) -> Process:
    """One file. Raises OSError if it cannot be read, StatError if it is wrong."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        alive = _is_alive(fd)
        if os.fstat(fd).st_size < _HEADER.size:
            raise StatError(f"{path}: too short for a statistics file")
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as data:
            return _parse(path, data, alive)
    finally:
        os.close(fd)


def folders() -> list[Path]:
    """Where processes of this host publish: the run folder and its fallbacks."""
    first = Path(os.environ.get("HARP_RUN_DIR") or DEFAULT_FOLDER)
    return [first, *sorted(Path("/dev/shm").glob("harp-[0-9]*"))]


def scan(where: Optional[Sequence[Path]] = None) -> list[Process]:
    """The processes that live, oldest first. Files that go away meanwhile, or
    belong to nobody any more, or are damaged are passed over."""
    found = []
    for folder in folders() if where is None else where:
        try:
            names = sorted(entry.name for entry in os.scandir(folder))
        except OSError:
            continue
        for name in names:
            if not _NAME.fullmatch(name):
                continue
            try:
                process = read(folder / name)
            except (OSError, StatError):
                continue
            if process.alive:
                found.append(process)
    return sorted(found, key=lambda process: process.started)
