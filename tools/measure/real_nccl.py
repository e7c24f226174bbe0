# SPDX-License-Identifier: Apache-2.0
"""NCCL's own collectives over HARP and over NCCL's sockets, in interleaved pairs.

NCCL needs a GPU. A build of its host code with an emulated runtime does without one; it is not part
of this project. A folder with such a build holds:

    nt                  RANK RANKS ID-FILE perf: runs the operations of OPS (ar, ag, sr, bc) with
                        the SIZES in bytes for MS milliseconds each, verifies every element, and
                        prints "PERF OP bytes N iters N us N busbw N GB/s cpu_us N ok|WRONG" for
                        each
    b218/libnccl.so.2   the library
    topo.xml            its NCCL_TOPO_FILE; without it, the variable of the environment

Each host runs one rank, on one core, because emulated kernels also use the cores.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from harp.paths import nccl_plugin_path
from tools.hosts.lab import Host, Lab, LabError
from tools.measure.bench_plan import HARP, KIB, MIB
from tools.measure.records import Document, Record, make_record
from tools.measure.site import write_configuration
from tools.measure.stats import Summary, ratios, summarize
from tools.measure.tables import markdown, size_text
from tools.measure.verdicts import Verdict

WIRE = "veth-1500"
SOCKETS = "nccl-socket"
OPERATIONS = {"ar": "all_reduce", "ag": "all_gather", "sr": "sendrecv", "bc": "broadcast"}
SIZES = (64 * KIB, MIB, 16 * MIB)
CHANNELS = (1, 2)
PASS_MS = 150  # of each operation and size
LIMIT_S = 120.0
LINE = re.compile(
    r"PERF (\w+) bytes (\d+) iters \d+ us ([\d.]+) busbw ([\d.]+) GB/s cpu_us [\d.]+ (\w+)"
)


class NoNccl(Exception):
    """The folder has no usable build. The text says why."""


def _channels(count: int) -> str:
    return f"{count} channel{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class Key:
    """A row: an operation of NCCL."""

    op: str
    size: int  # bytes
    channels: int

    @property
    def least(self) -> float:
        """The target for HARP's bus bandwidth over that of NCCL's sockets."""
        return 1.3 if self.op == "all_reduce" and self.size >= MIB else 1.0

    @property
    def title(self) -> str:
        return f"NCCL {self.op} {size_text(self.size)}, {_channels(self.channels)}"


@dataclass
class Results:
    """The records of all pairs, and the runs that failed."""

    records: list[Record] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def keys(self) -> list[Key]:
        return [Key(op, size, n) for n in CHANNELS for op in OPERATIONS.values() for size in SIZES]

    def rates(self, key: Key, transport: str) -> dict[int, float]:
        """Bus bandwidth by pair."""
        return {
            record["pair"]: record["busbw_gbs"]
            for record in self.records
            if (record["op"], record["size"], record["channels"])
            == (key.op, key.size, key.channels)
            and record["transport"] == transport
        }

    def ratio(self, key: Key) -> Optional[Summary]:
        ours, theirs = self.rates(key, HARP), self.rates(key, SOCKETS)
        both = sorted(set(ours) & set(theirs))
        return ratios([ours[i] for i in both], [theirs[i] for i in both]) if both else None


def parse(said: str, transport: str, channels: int, pair: int) -> list[Record]:
    """The records in the output of rank 0."""
    return [
        make_record(
            wire=WIRE, transport=transport, op=OPERATIONS[op], size=int(size), nranks=2,
            channels=channels, pair=pair, time_us=float(us), busbw_gbs=float(rate),
            wrong=int(verdict != "ok"), mtu=1500, offloads="all",
        )
        for op, size, us, rate, verdict in LINE.findall(said)
    ]  # fmt: skip


def _environment(
    nccl: Path, host: Host, home: Path, transport: str, channels: int
) -> dict[str, str]:
    variables = {
        "NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring", "NCCL_CUMEM_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1", "NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": host.interface,
        "NCCL_MIN_NCHANNELS": str(channels), "NCCL_MAX_NCHANNELS": str(channels),
        "NCCL_HOSTID": f"host-{host.index}", "FAKE_BUSID": "0000:0a:00.0", "MS": str(PASS_MS),
        "OPS": ",".join(OPERATIONS), "SIZES": ",".join(map(str, SIZES)),
    }  # fmt: skip
    topology, folders = nccl / "topo.xml", [nccl / "b218"]
    if topology.exists():
        variables["NCCL_TOPO_FILE"] = str(topology)
    if transport == HARP:
        folders.insert(0, nccl_plugin_path().parent)
        keys = {"device": f"packet:{host.interface}", "address": "kernel"}
        variables.update(write_configuration(home, keys))
    variables["NCCL_NET"] = "HARP" if transport == HARP else "Socket"  # without a fallback
    variables["LD_LIBRARY_PATH"] = ":".join(map(str, folders))
    return variables


def _start(
    nccl: Path, lab: Lab, rank: int, folder: Path, transport: str, channels: int
) -> "subprocess.Popen[str]":
    host, home = lab.hosts[rank], folder / str(rank)
    shared = home / "shm"
    shared.mkdir(parents=True)
    cores = sorted(os.sched_getaffinity(0))
    program = ["taskset", "-c", cores[rank % len(cores)], nccl / "nt"]
    args = ["sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"', shared, *program]
    args += [rank, len(lab.hosts), folder / "id", "perf"]
    with open(home / "output", "w") as output:
        variables = _environment(nccl, host, home, transport, channels)
        return host.popen(args, variables, stdout=output, stderr=subprocess.STDOUT)


def run(nccl: Path, lab: Lab, transport: str, channels: int, pair: int) -> list[Record]:
    """The records of one run. Raises LabError if a rank failed or took too long."""
    with tempfile.TemporaryDirectory(prefix="harp-nccl-") as name:
        folder = Path(name)
        ranks = [
            _start(nccl, lab, rank, folder, transport, channels) for rank in range(len(lab.hosts))
        ]
        limit = time.monotonic() + LIMIT_S
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < limit:
            if any(rank.poll() for rank in ranks):
                limit = min(limit, time.monotonic() + 5)
            time.sleep(0.02)
        ended = [rank.poll() for rank in ranks]
        for host in lab.hosts:
            host.end_processes(timeout=1)
        outputs = [(folder / str(i) / "output").read_text() for i in range(len(ranks))]
    found = parse(outputs[0], transport, channels, pair)
    if ended != [0] * len(ranks) or not found:
        raise LabError(f"NCCL over {transport} ended with {ended}\n" + "".join(outputs))
    return found


def measure(nccl: Path, pairs: int, say: Callable[[str], None]) -> Results:
    """Measures all rows. Raises NoNccl if the folder lacks a program."""
    for needed in (nccl / "nt", nccl / "b218" / "libnccl.so.2"):
        if not needed.exists():
            raise NoNccl(f"{needed} is missing: --nccl takes a folder with a build of NCCL")
    results, sides = Results(), (SOCKETS, HARP)
    with Lab(2, WIRE) as lab:
        for channels in CHANNELS:
            for pair in range(pairs):
                for side in sides if pair % 2 == 0 else reversed(sides):
                    try:
                        results.records += run(nccl, lab, side, channels, pair)
                    except LabError as error:
                        results.failures.append(str(error))
                        say(f"FAIL {error}")
                say(f"NCCL, {_channels(channels)}, pair {pair + 1} of {pairs}")
    wrong = [record for record in results.records if record["wrong"]]
    results.failures += [f"NCCL {one['op']} over {one['transport']}: wrong" for one in wrong]
    return results


def table(results: Results) -> str:
    header = ["operation", "NCCL's sockets, GB/s", "HARP, GB/s", "HARP over sockets"]
    lines = []
    for key in results.keys():
        sides = [list(results.rates(key, side).values()) for side in (SOCKETS, HARP)]
        ratio = results.ratio(key)
        shown = [summarize(one).text() if one else "failed" for one in sides]
        lines.append([key.title, *shown, ratio.text() if ratio else "–"])
    return markdown(header, lines, [1, 2, 3])


def verdicts(results: Results) -> list[Verdict]:
    found = []
    for key in results.keys():
        ratio = results.ratio(key)
        reached = f"{ratio.median:.2f}×" if ratio else "not measured"
        text = f"{key.title}: bus bandwidth ≥ {key.least}× NCCL's sockets: {reached}"
        found.append(Verdict(text, ratio is not None and ratio.median >= key.least))
    return found


def save(results: Results, path: Path) -> None:
    targets: Sequence[dict[str, object]] = [
        {"row": key.title, "bound": key.least, "ratio": ratio.median if ratio else None}
        for key in results.keys()
        for ratio in [results.ratio(key)]
    ]
    extra = {"targets": targets, "failures": results.failures}
    Document(records=results.records, extra=extra).save(path)
