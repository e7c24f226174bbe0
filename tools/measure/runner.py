# SPDX-License-Identifier: Apache-2.0
"""Runs `harp perf` on the hosts of a lab: one rank a host, each with its configuration."""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Union

from harp.paths import build_dir, perf_program
from tools.hosts.lab import Host, Lab
from tools.measure.records import Record, RecordError, load_records
from tools.measure.shared import HarpEthdev
from tools.measure.site import perf_args, write_configuration

RENDEZVOUS_PORT = 29411


class RunError(RuntimeError):
    """Ranks failed, or took too long. The message ends with their output."""


@dataclass(frozen=True)
class Sizes:
    """Message sizes in bytes: from `first` to `last`, each `factor` times the previous one."""

    first: int
    last: int
    factor: int = 2

    def arguments(self) -> List[str]:
        return ["-b", str(self.first), "-e", str(self.last), "-f", str(self.factor)]


@dataclass(frozen=True)
class SizeList:
    """Message sizes in bytes, each with its iterations and those to warm up."""

    sizes: Tuple[Tuple[int, int, int], ...]

    def arguments(self) -> List[str]:
        return ["--sizes", ",".join(":".join(map(str, one)) for one in self.sizes)]


@dataclass(frozen=True)
class KernelTcp:
    """The reference plugin over kernel TCP."""

    nsocks: int = 1
    cc: str = "cubic"
    api: Optional[int] = None
    name: str = "kernel-tcp"

    def label(self) -> str:
        return f"{self.name}, {self.nsocks} socket{'s' if self.nsocks > 1 else ''}, {self.cc}"

    def arguments(self) -> List[str]:
        args = ["--kernel", "--nsocks", str(self.nsocks), "--kernel-cc", self.cc]
        return args + (["--api", str(self.api)] if self.api else [])

    def environment(self, host: Host, folder: Path) -> Dict[str, str]:
        return {"NCCL_SOCKET_IFNAME": host.interface}

    def facts(self) -> Record:
        """The fields of a record that `harp perf` does not know."""
        return {"address": None}


@dataclass(frozen=True)
class HarpPacket:
    """HARP over the packet port. own_address: HARP's own instead of the kernel's."""

    own_address: bool = False
    api: Optional[int] = None
    flows: Optional[int] = None
    settings: Tuple[Tuple[str, str], ...] = ()  # more keys of the configuration
    name: str = "harp-packet"

    def device(self, host: Host) -> str:
        return f"packet:{host.interface}"

    def label(self) -> str:
        args = [self.name, "own address" if self.own_address else "the kernel's address"]
        args += [f"v{self.api}"] if self.api else []
        args += [f"{self.flows} flow{'s' if self.flows > 1 else ''}"] if self.flows else []
        return ", ".join(args)

    def arguments(self) -> List[str]:
        return perf_args(self.api, self.flows)

    def environment(self, host: Host, folder: Path) -> Dict[str, str]:
        """Writes the host's configuration into `folder`. Returns the variables that name it."""
        address = f"{host.own_address}/{host.prefix}" if self.own_address else "kernel"
        keys = {"device": self.device(host), "address": address, **dict(self.settings)}
        return write_configuration(folder, keys)

    def facts(self) -> Record:
        """The fields of a record that `harp perf` does not know."""
        return {"address": "own" if self.own_address else "kernel"}


@dataclass(frozen=True)
class HarpXdp(HarpPacket):
    """HARP over the xdp port. A veth has copy mode only."""

    name: str = "harp-xdp"

    def device(self, host: Host) -> str:
        return f"xdp:{host.interface},mode=copy"

    def label(self) -> str:
        return super().label().replace(self.name, f"{self.name} in copy mode", 1)


def has_xdp() -> bool:
    """Whether this build has xdp devices: clang makes their program."""
    return (build_dir() / "dpdk_glue" / "xdp_program.o").exists()


@dataclass(frozen=True)
class OtherPlugin:
    """Another plugin over kernel TCP in the place of the reference plugin, such as NCCL's own
    socket transport. threads, sockets: NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD; 0: not set."""

    path: Path  # absolute
    threads: int = 0
    sockets: int = 0
    name: str = "kernel-tcp"

    def label(self) -> str:
        more = f", {self.threads} x {self.sockets} sockets" if self.threads else ""
        return f"{self.name} by {self.path.name}{more}, cubic"

    def arguments(self) -> List[str]:
        return ["--plugin", str(self.path)]

    def environment(self, host: Host, folder: Path) -> Dict[str, str]:
        """The hosts' routes set cubic, so the plugin's sockets have it."""
        variables = {"NCCL_SOCKET_IFNAME": host.interface}
        if self.threads:
            variables["NCCL_SOCKET_NTHREADS"] = str(self.threads)
            variables["NCCL_NSOCKS_PERTHREAD"] = str(self.sockets)
        return variables

    def facts(self) -> Record:
        """The fields of a record that `harp perf` does not know."""
        return {"address": None, "plugin": str(self.path)}


Transport = Union[KernelTcp, OtherPlugin, HarpPacket, HarpEthdev]


@dataclass(frozen=True)
class Task:
    """A task for `harp perf`. limit_s: the timeout for all of it, in seconds."""

    op: str
    sizes: Union[Sizes, SizeList]
    iterations: int = 20
    warmup: int = 5
    outstanding: Optional[int] = None
    step: Optional[int] = None
    pair: Optional[int] = None
    verified_iterations: Optional[int] = None
    rate_gbit: Optional[float] = None
    rest: bool = False  # with rate_gbit: sleep between messages
    inject_wrong: bool = False
    limit_s: float = 120

    def arguments(self) -> List[str]:
        args = [self.op, *self.sizes.arguments()]
        args += ["-n", str(self.iterations), "-w", str(self.warmup)]
        for option, value in (
            ("--outstanding", self.outstanding),
            ("--step", self.step),
            ("--label-pair", self.pair),
            ("--verified-iterations", self.verified_iterations),
            ("--rate", self.rate_gbit),
        ):
            if value is not None:
                args += [option, str(value)]
        args += ["--rest"] if self.rest else []
        return args + (["--inject-wrong"] if self.inject_wrong else [])


def _wire_arguments(lab: Lab) -> List[str]:
    offloads = "all" if lab.wire.offloads else "none"
    labels = ["--wire-name", lab.wire.name, "--label-mtu", str(lab.wire.mtu)]
    return [*labels, "--label-offloads", offloads]


def _start(
    lab: Lab, rank: int, task: Task, transport: Transport, folder: Path
) -> "subprocess.Popen[Any]":
    host = lab.hosts[rank]
    home = folder / str(rank)
    home.mkdir()
    args = [
        perf_program(),
        *task.arguments(),
        *transport.arguments(),
        *_wire_arguments(lab),
        "--transport-name",
        transport.name,
        "--json",
        folder / "records.json",
        "--rank",
        rank,
        "--nranks",
        len(lab.hosts),
        "--rendezvous",
        f"{lab.hosts[0].address}:{RENDEZVOUS_PORT}",
    ]
    with open(home / "output", "w") as output:
        environment = transport.environment(host, home)
        return host.popen(args, environment, stdout=output, stderr=subprocess.STDOUT)


def _wait(ranks: "List[subprocess.Popen[Any]]", limit_s: float) -> Optional[str]:
    """Waits until all have ended, or 5 s after one has failed. Returns the failure, None without
    one."""
    deadline = time.monotonic() + limit_s
    failed: Optional[str] = None
    while any(process.poll() is None for process in ranks):
        if time.monotonic() > deadline:
            return failed or f"not done within {limit_s:.0f} s"
        if failed is None:
            failed = _failure(ranks)
            if failed:
                deadline = min(deadline, time.monotonic() + 5)
        time.sleep(0.02)
    return failed or _failure(ranks)


def _failure(ranks: "List[subprocess.Popen[Any]]") -> Optional[str]:
    for rank, process in enumerate(ranks):
        if process.poll():
            return f"rank {rank} ended with {process.returncode}"
    return None


def run_perf(lab: Lab, task: Task, transport: Transport) -> List[Record]:
    """The records of one run, also of a run that found wrong bytes.

    Raises RunError if the ranks failed for another reason, or ran past the limit.
    """
    with tempfile.TemporaryDirectory(prefix="harp-perf-") as name:
        folder = Path(name)
        count = len(lab.hosts)
        ranks = [_start(lab, rank, task, transport, folder) for rank in range(count)]
        failed = _wait(ranks, task.limit_s)
        for host in lab.hosts:
            host.end_processes(1, ranks)  # others of the host may watch it
        records = folder / "records.json"
        found = load_records(records) if failed is None else _records_of_wrong_bytes(records)
        if found:
            return [{**record, **transport.facts()} for record in found]
        outputs = [(folder / str(rank) / "output").read_text() for rank in range(count)]
        said = "".join(f"-- rank {rank}\n{text}" for rank, text in enumerate(outputs))
        raise RunError(
            f"{task.op} over {transport.label()} on {lab.wire.name}: "
            f"{failed or 'it wrote no records'}\n{said}"
        )


def _records_of_wrong_bytes(path: Path) -> List[Record]:
    """The records if they contain wrong bytes, which explains exit status 1; else none."""
    try:
        records = load_records(path)
    except RecordError:
        return []
    return records if any(record["wrong"] for record in records) else []
