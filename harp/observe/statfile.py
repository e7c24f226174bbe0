# SPDX-License-Identifier: Apache-2.0
"""Reads the statistics files of running processes: counters and flows. A process has one file for
each NIC that it uses.

The files describe their own layout (see harp/engine/statfile.h), so files of other releases are
readable, too. Reading does not slow a process down. Any user may write a file there, so its bytes
are bounded and copied first, and the owner comes from the file system.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import stat
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from harp import _tables
from harp.observe import descriptors, foreign

DEFAULT_FOLDER = Path("/usr/local/tfabric/tools/run")
SHARED_MEMORY = Path("/dev/shm")  # the parent of the fallback folders

_MAGIC = b"HARPSTAT"
_VERSION = 1
_HEADER = struct.Struct("=8sIIQQIIIIIIQQQII32s64s64s256s32s512s256s")
# Fields that newer headers add: rank and GPU, the process's number, then the job.
_HEADER_MORE = struct.Struct("=i20s")
_HEADER_PROCESS = struct.Struct("=Q")
_HEADER_JOB = struct.Struct("=I124s")
_COUNTER = struct.Struct("=60sI")
_FLOW = struct.Struct("=IIIHBB4s4sHH11IQQQ4I")
_TIMES = struct.Struct("=Q8x24I")  # follows a flow of newer files
_NAME = re.compile(r"[0-9a-f]{16}\.stat")
_COUNTER_NAME = re.compile(r"[a-z][a-z0-9_]*")
_FALLBACK = re.compile(r"harp-(0|[1-9][0-9]{0,9})(-[0-9a-f]{16})?")
_FALLBACKS_MOST = 8  # of a user; a job uses one
_SIZE_MOST = 8 << 20  # bytes of a file; 8 instances and 512 flows take less than 1 MiB
FILES_MOST = 256  # files of a user: 16 ranks of a host with 16 NICs each
BYTES_MOST = 128 << 20  # of a user's files that a scan reads: 400 quiet files of HARP's
_FLOWS_MOST = 4096  # entries of a file: 8 times as many as HARP writes
_INSTANCES_MOST = 64  # of a file: 8 times as many as HARP has
_COUNTERS_MOST = 1024  # of an instance: 8 times as many as HARP has
_OPENING = 4 << 10  # bytes that cost as much as the opening of a file
_TRIES = 100  # most readings of the flow table to find each entry unchanged

TCP_STATES = (
    "",
    "ESTABLISHED",
    "SYN-SENT",
    "SYN-RECEIVED",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "TIME-WAIT",
    "CLOSED",
    "CLOSE-WAIT",
    "LAST-ACK",
    "LISTEN",
    "CLOSING",
    "SYN-RECEIVED",
)


class StatError(ValueError):
    """The file is not a statistics file that this release can read."""


@dataclass(frozen=True)
class Flow:
    """A TCP connection of a link. Times are in microseconds, sizes in bytes. `direction` is "S" if
    it sends messages, "R" if it receives them, "" before that is known. The fields *_wait_ms are
    the milliseconds that the flow has waited: a sender for acknowledgements, for the peer's window,
    and for the device; a receiver for a receive to be posted. `message_times` are the numbers of
    messages in the buckets of harp.observe.message_times, () in files of older releases, and
    `message_time_ns` is the sum of their times."""

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
    ack_wait_ms: int
    window_wait_ms: int
    device_wait_ms: int
    receive_wait_ms: int
    message_time_ns: int
    message_times: tuple[int, ...]

    @property
    def local_port(self) -> int:
        return int(self.local.rpartition(":")[2])

    @property
    def peer_address(self) -> str:
        return self.peer.rpartition(":")[0]

    @property
    def peer_port(self) -> int:
        return int(self.peer.rpartition(":")[2])


@dataclass(frozen=True)
class Process:
    """A process that uses HARP, on one of its NICs. `id` is the name of the file, a random number:
    pids are not unique across containers. `process_id` is a random number, too, and is equal for
    all NICs of a process. `rank` is its rank in the job, None if unknown; `world_size` the number
    of ranks, 0 if unknown; `job` the job's name and `gpu` a PCI id, "" if unknown; `uid` the file's
    owner, or the user who runs the process if its descriptor led to the file; `started`: when the
    process opened the NIC, in seconds since the epoch; `instances` has the counters of each
    instance by name. A renamed counter has its old name, too."""

    path: str
    id: str
    process_id: str
    alive: bool
    rank: Optional[int]
    world_size: int
    job: str
    gpu: str
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


def _flow(entry: bytes) -> Optional[Flow]:
    """None if the entry is free."""
    (
        _,
        state,
        link,
        flow,
        instance,
        direction,
        local,
        peer,
        local_port,
        peer_port,
        mss,
        cwnd,
        ssthresh,
        send_window,
        receive_window,
        in_flight,
        srtt,
        rttvar,
        min_rtt,
        rto,
        retransmits,
        bytes_in,
        bytes_out,
        opened,
        ack_wait,
        window_wait,
        device_wait,
        receive_wait,
    ) = _FLOW.unpack_from(entry)
    if state == 0:
        return None
    time = 0
    times: list[int] = []
    if len(entry) >= _FLOW.size + _TIMES.size:
        time, *times = _TIMES.unpack_from(entry, _FLOW.size)
    return Flow(
        link=link,
        flow=flow,
        instance=instance,
        direction={83: "S", 82: "R"}.get(direction, ""),
        state=TCP_STATES[state] if state < len(TCP_STATES) else str(state),
        local=_endpoint(local, local_port),
        peer=_endpoint(peer, peer_port),
        mss=mss,
        cwnd=cwnd,
        ssthresh=ssthresh,
        send_window=send_window,
        receive_window=receive_window,
        in_flight=in_flight,
        srtt_us=srtt,
        rttvar_us=rttvar,
        min_rtt_us=min_rtt,
        rto_us=rto,
        retransmits=retransmits,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        opened=opened / 1e9,
        ack_wait_ms=ack_wait,
        window_wait_ms=window_wait,
        device_wait_ms=device_wait,
        receive_wait_ms=receive_wait,
        message_time_ns=time,
        message_times=tuple(times),
    )


def _consistent(
    before: bytes, table: Callable[[], bytes], size: int, count: int
) -> Iterator[bytes]:
    """Yields the entries that are complete: unchanged in two readings in a row, with an even
    generation (it is odd during a write). Leaves out an entry that keeps changing. before: the
    first reading; table: makes the others, b"" if no more bytes may be read."""
    left: Sequence[int] = range(count)
    for _ in range(_TRIES):
        now = table()
        if len(now) < count * size:
            return  # truncated, or read often enough
        moving = []
        for i in left:
            entry = now[i * size : (i + 1) * size]
            (generation,) = struct.unpack_from("=I", entry)
            if generation % 2 == 0 and entry == before[i * size : (i + 1) * size]:
                yield entry
            else:
                moving.append(i)
        if not moving:
            return
        left, before = moving, now


def _add_aliases(kinds: dict[str, str], values: list[dict[str, int]]) -> None:
    """Adds the name that a renamed counter lacks: the old one, or in a file of an older release the
    new one."""
    for old, name in _tables.counter_aliases().items():
        for known, added in ((name, old), (old, name)):
            if known in kinds and added not in kinds:
                kinds[added] = kinds[known]
                for instance in values:
                    instance[added] = instance[known]


class Budget:
    """What a scan may still read of a user's files."""

    def __init__(self) -> None:
        self.files = FILES_MOST
        self.bytes = BYTES_MOST

    def take(self, size: int) -> bool:
        """Whether that many bytes may be read now."""
        self.bytes -= size
        return self.bytes >= 0


def _parse(path: Path, stem: str, read: Callable[[], bytes], alive: bool, uid: int) -> Process:
    """Parses a file. `read` returns its bytes, which may change between calls, or b"" if it may not
    be read any more."""
    data = read()
    if len(data) < _HEADER.size or data[:8] != _MAGIC:
        raise StatError(f"{path}: not a statistics file of HARP's; these are *.stat")
    (
        _,
        version,
        header_size,
        file_size,
        start,
        pid,
        _,
        instances,
        counters,
        table,
        counter_size,
        instance_offset,
        stride,
        flow_offset,
        flow_size,
        flows,
        *texts,
    ) = _HEADER.unpack_from(data)
    release, host, command, device, address, config, about = map(foreign.text, texts)
    if version != _VERSION:
        raise StatError(
            f"{path}: its format is {version}, but this release reads {_VERSION}; "
            f"use the harp of release {release}"
        )
    if (
        file_size > len(data)
        or counter_size < _COUNTER.size
        or flow_size < _FLOW.size
        or flows > _FLOWS_MOST
        or instances > _INSTANCES_MOST
        or counters > _COUNTERS_MOST
        or table + counters * counter_size > len(data)
        or not counters
        or stride < counters * 8
        or instance_offset + instances * stride > len(data)
        or flow_offset + flows * flow_size > len(data)
    ):
        raise StatError(f"{path}: its sizes contradict each other; the file is damaged")
    kinds: dict[str, str] = {}
    for i in range(counters):
        raw, kind = _COUNTER.unpack_from(data, table + i * counter_size)
        name = foreign.text(raw)
        if not _COUNTER_NAME.fullmatch(name):
            raise StatError(f"{path}: {name!r} is not a counter name; the file is damaged")
        kinds[name] = "gauge" if kind else "count"
    values = [
        dict(zip(kinds, struct.unpack_from(f"={counters}Q", data, instance_offset + i * stride)))
        for i in range(instances)
    ]
    _add_aliases(kinds, values)

    def flow_table(of: bytes) -> bytes:
        return of[flow_offset : flow_offset + flows * flow_size]

    rank, gpu, number, size, job, offset = -1, b"", 0, 0, b"", _HEADER.size
    if offset + _HEADER_MORE.size <= min(header_size, len(data)):
        rank, gpu = _HEADER_MORE.unpack_from(data, offset)
    offset += _HEADER_MORE.size
    if offset + _HEADER_PROCESS.size <= min(header_size, len(data)):
        (number,) = _HEADER_PROCESS.unpack_from(data, offset)
    offset += _HEADER_PROCESS.size
    if offset + _HEADER_JOB.size <= min(header_size, len(data)):
        size, job = _HEADER_JOB.unpack_from(data, offset)
    entries = _consistent(flow_table(data), lambda: flow_table(read()), flow_size, flows)
    return Process(
        path=str(path),
        id=stem,
        process_id=f"{number:016x}" if number else stem,
        alive=alive,
        rank=rank if rank >= 0 else None,
        world_size=size,
        job=foreign.text(job),
        gpu=foreign.text(gpu),
        pid=pid,
        uid=uid,
        started=start / 1e9,
        release=release,
        host=host,
        command=command,
        device=device,
        address=address,
        config=config,
        about=about,
        kinds=kinds,
        instances=values,
        flows=[flow for flow in map(_flow, entries) if flow],
    )


def read_fd(path: Path, stem: str, fd: int, budget: Optional[Budget] = None) -> Process:
    """Reads a file that is open. stem: the file's name without its end. As read otherwise; also
    raises ForeignError."""

    def content() -> bytes:
        if budget and not budget.take(os.fstat(fd).st_size):
            return b""
        return foreign.read_fd(path, fd, _SIZE_MOST)

    return _parse(path, stem, content, _is_alive(fd), os.fstat(fd).st_uid)


def read(path: Path, name: str = "", budget: Optional[Budget] = None) -> Process:
    """Reads one file. name: the file's name, if the path is one in /proc/PID/fd. budget: bounds the
    bytes that are read, if given. Raises OSError if it cannot be read, StatError if it is wrong."""
    try:
        fd = foreign.open_file(path, follow=bool(name))
        if budget:
            budget.take(_OPENING)
        try:
            return read_fd(path, Path(name or path).stem, fd, budget)
        finally:
            os.close(fd)
    except foreign.ForeignError as wrong:
        raise StatError(str(wrong)) from wrong


def _fallbacks() -> Iterator[Path]:
    """The harp-UID and harp-UID-RANDOM folders that belong to that user. Other users could make
    folders of the same name pattern."""
    left: defaultdict[int, int] = defaultdict(lambda: _FALLBACKS_MOST)
    try:
        entries = sorted(os.scandir(SHARED_MEMORY), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        named = _FALLBACK.fullmatch(entry.name)
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if named and stat.S_ISDIR(status.st_mode) and status.st_uid == int(named[1]):
            left[status.st_uid] -= 1
            if left[status.st_uid] >= 0:
                yield Path(entry.path)


def is_on(process: Process, devices: Sequence[str]) -> bool:
    """Whether the process uses one of these NICs, written as in the ztcp*.conf or without the
    scheme."""
    inner = _tables.innermost(process.device)
    return not {process.device, inner, inner.partition(":")[2]}.isdisjoint(devices)


def chosen(
    processes: Sequence[Process],
    pids: Sequence[int] = (),
    ranks: Sequence[int] = (),
    ids: Sequence[str] = (),
    devices: Sequence[str] = (),
    jobs: Sequence[str] = (),
) -> list[Process]:
    """The processes selected by pid, rank, prefix of an id, device, and name of the job; all
    without a selection. The prefix may be that of a process_id, too. A device is written as in the
    ztcp*.conf, or without its scheme. Raises LookupError with the values that match no process."""

    def known(process: Process) -> bool:
        return (
            (not pids or process.pid in pids)
            and (not ranks or process.rank in ranks)
            and (not ids or named(process, ids))
            and (not devices or is_on(process, devices))
            and (not jobs or process.job in jobs)
        )

    def named(process: Process, prefixes: Sequence[str]) -> bool:
        return any(text.startswith(tuple(prefixes)) for text in (process.id, process.process_id))

    found = [process for process in processes if known(process)]
    missing = [
        *(f"pid {pid}" for pid in pids if pid not in {one.pid for one in found}),
        *(f"rank {rank}" for rank in ranks if rank not in {one.rank for one in found}),
        *(f"id {text}" for text in ids if not any(named(one, [text]) for one in found)),
        *(f"device {name}" for name in devices if not any(is_on(one, [name]) for one in found)),
        *(f"job {name}" for name in jobs if name not in {one.job for one in found}),
    ]
    if missing:
        raise LookupError(
            f"no process with {', '.join(missing)} runs here (looked in "
            f"{', '.join(map(str, folders()))})"
        )
    return found


def folders() -> list[Path]:
    """The folders of the statistics files: the run folder and its fallbacks."""
    first = Path(os.environ.get("HARP_RUN_DIR") or DEFAULT_FOLDER)
    return [first, *_fallbacks()]


def nobody(what: str = "runs here", elsewhere: bool = False) -> str:
    """What to say if no process was found. what: the rest of the sentence. elsewhere: the command
    also looks for files that processes publish elsewhere, with --containers."""
    hint = "; --containers also finds processes that could not write there" if elsewhere else ""
    return f"no process with HARP {what} (looked in {', '.join(map(str, folders()))}{hint})"


def _in_folders(where: Sequence[Path]) -> Iterator[Path]:
    for folder in where:
        try:
            names = sorted(entry.name for entry in os.scandir(folder))
        except OSError:
            continue
        yield from (folder / name for name in names if _NAME.fullmatch(name))


def scan(where: Optional[Sequence[Path]] = None, containers: bool = False) -> list[Process]:
    """The running processes, the oldest first, with the NICs of a process together. Skips files
    that vanish, that belong to an ended process, or that are damaged, and those of a user beyond
    `FILES_MOST` files or `BYTES_MOST` bytes. A file that is in two of the folders, such as a
    mounted one, counts once. containers: also the files that processes publish elsewhere
    (descriptors.py). Of these, all that are read count, since a user may publish many that are
    wrong."""
    found: dict[tuple[str, int], Process] = {}
    users: defaultdict[int, Budget] = defaultdict(Budget)
    seen: set[tuple[Optional[int], int, int]] = set()

    def add(path: Path, name: str = "", user: Optional[int] = None) -> None:
        try:
            # A link in /proc may belong to root while the file is another user's.
            status = os.stat(path, follow_symlinks=bool(name))
            budget = users[status.st_uid if user is None else user]
            # A user's descriptor may have become one of another user's file since it was found. It
            # must not hide that file.
            file = status.st_dev, status.st_ino
            if not {(None, *file), (user, *file)}.isdisjoint(seen):
                return
            if budget.files <= 0 or budget.bytes <= 0:
                return
            seen.add((user, *file))
            budget.files -= bool(name)
            process = read(path, name, budget)
        except (OSError, StatError):
            return
        if user is not None:
            process = replace(process, uid=user)
        if process.alive and (process.id, process.uid) not in found:
            found[process.id, process.uid] = process
            budget.files -= not name

    for path in _in_folders(folders() if where is None else where):
        add(path)
    for name, path, user in descriptors.statistics_files() if containers else ():
        add(path, name, user)
    in_order = sorted(found.values(), key=lambda process: process.started)
    return [nic for nics in grouped(in_order) for nic in nics]


def grouped(processes: Sequence[Process]) -> list[list[Process]]:
    """The NICs of each process, in the order of the processes' first NICs."""
    groups: dict[tuple[str, int], list[Process]] = {}
    for process in processes:
        groups.setdefault((process.process_id, process.uid), []).append(process)
    return list(groups.values())
