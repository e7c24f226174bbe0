# SPDX-License-Identifier: Apache-2.0
"""The demo: all-reduce over two hosts, then four, over kernel TCP and over HARP on the same wire,
and over HARP with DPDK on links of shared memory.

Every byte is verified. The kernels' counters and a capture show for every row of HARP that HARP
carried the bytes. No packet socket sees the frames of xdp devices, so the interface's counters show
them. In these rows the kernels' own TCP talks and iperf3 runs on the same interface meanwhile.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Dict, List, Optional

import click

from tools.hosts.lab import Lab, LabError
from tools.measure.carriers import Carriers, Watch
from tools.measure.iperf import PORT as STREAM_PORT
from tools.measure.kernel_stream import KernelStream
from tools.measure.kernel_talk import PORT as TALK_PORT
from tools.measure.kernel_talk import TOO_SLOW_S, KernelTalk
from tools.measure.options import json_option
from tools.measure.records import Document, Record
from tools.measure.runner import (
    RENDEZVOUS_PORT,
    HarpPacket,
    HarpXdp,
    KernelTcp,
    RunError,
    Sizes,
    Task,
    Transport,
    has_xdp,
    run_perf,
)
from tools.measure.shared import SHARED, HarpEthdev
from tools.measure.tables import markdown, size_text

WIRE = "veth-1500"
FIRST = 8  # bytes
ITERATIONS = {2: 10, 4: 3}  # by hosts: four share this machine's cores


@dataclass(frozen=True)
class Check:
    """One check of the demo; `text` has the observation."""

    ok: bool
    name: str
    text: str


@dataclass
class Row:
    """One transport with all sizes."""

    hosts: int
    transport: Transport
    records: List[Record] = field(default_factory=list)
    carriers: Optional[Carriers] = None
    talk: Optional[KernelTalk] = None  # of the kernels meanwhile
    stream: Optional[KernelStream] = None  # of the kernels meanwhile
    failure: Optional[str] = None

    def title(self) -> str:
        return f"{self.transport.label()}, {self.hosts} hosts"

    def bytes_past_host_0(self) -> float:
        """The least bytes of the timed iterations on host 0's wire, both ways together."""
        sizes: int = sum(record["size"] for record in self.records)
        return sizes * 4 * (self.hosts - 1) / self.hosts * ITERATIONS[self.hosts]


def rows() -> List[Row]:
    two: List[Transport] = [
        KernelTcp(),
        *(HarpPacket(own, api) for own in (False, True) for api in (12, 4)),
        *(HarpEthdev(SHARED[link]) for link in ("vhost-1500", "vhost-tso")),
    ]
    four: List[Transport] = [KernelTcp(), HarpPacket(False, 12), HarpPacket(True, 12)]
    if has_xdp():
        two += [HarpXdp(own, 12) for own in (False, True)]
        four += [HarpXdp(own, 12) for own in (False, True)]
    return [Row(2, transport) for transport in two] + [Row(4, transport) for transport in four]


def run_row(row: Row, last: int, inject_wrong: bool) -> None:
    """Runs a row. Fills in its records, or its failure."""
    task = Task(
        "all_reduce", Sizes(FIRST, last), ITERATIONS[row.hosts], warmup=2, inject_wrong=inject_wrong
    )
    control_ports = (RENDEZVOUS_PORT, TALK_PORT, STREAM_PORT)
    try:
        with Lab(row.hosts, WIRE) as lab, Watch(lab, *control_ports) as watch:
            with ExitStack() as beside:
                if isinstance(row.transport, HarpXdp):
                    row.talk = beside.enter_context(KernelTalk(lab))
                    row.stream = beside.enter_context(KernelStream(lab))
                row.records = run_perf(lab, task, row.transport)
        row.carriers = watch.seen
    except (RunError, LabError, FileNotFoundError) as error:
        row.failure = str(error)


# -- the checks of a row


def check_row(row: Row) -> List[Check]:
    if row.failure is not None:
        return [Check(False, f"{row.title()}: runs", row.failure)]
    checks = [_check_bytes(row)]
    if row.carriers:
        if isinstance(row.transport, HarpXdp):
            checks += [
                _check_kernels_are_silent(row, row.carriers),
                _check_interface(row, row.carriers),
            ]
        elif isinstance(row.transport, HarpPacket):
            checks += [_check_kernels_are_silent(row, row.carriers), _check_wire(row, row.carriers)]
        elif isinstance(row.transport, HarpEthdev):
            checks.append(_check_kernels_are_silent(row, row.carriers))
        else:
            checks.append(_check_kernel_traffic(row, row.carriers))
    if row.talk:
        checks.append(_check_talk(row, row.talk))
    if row.stream:
        checks.append(_check_stream(row, row.stream))
    return checks


def _check_bytes(row: Row) -> Check:
    wrong = sum(record["wrong"] for record in row.records)
    last = size_text(row.records[-1]["size"]) if row.records else "nothing"
    text = f"{wrong} elements in {len(row.records)} sizes from {FIRST} B to {last}"
    return Check(wrong == 0 and bool(row.records), f"{row.title()}: wrong=0", text)


def _check_kernels_are_silent(row: Row, seen: Carriers) -> Check:
    return Check(
        seen.kernel_only_controlled(),
        f"{row.title()}: TcpOutSegs counts only the control connection",
        seen.kernel_text(),
    )


def _check_kernel_traffic(row: Row, seen: Carriers) -> Check:
    """Checks that the counter increases when the kernel sends: this validates HARP's rows."""
    ok = all(m > c for m, c in zip(seen.kernel_segments, seen.control_segments))
    return Check(ok, f"{row.title()}: TcpOutSegs shows the kernel's work", seen.kernel_text())


def _check_wire(row: Row, seen: Carriers) -> Check:
    missed = f"; {seen.lost} frames not captured" if seen.lost else ""
    least = row.bytes_past_host_0() * (0.5 if seen.lost else 1)
    return Check(
        seen.data_bytes >= least,
        f"{row.title()}: the capture on host 0 has the bytes on HARP's ports",
        seen.capture_text() + missed,
    )


def _check_interface(row: Row, seen: Carriers) -> Check:
    frames = seen.interface_bytes - seen.control_bytes
    return Check(
        frames >= row.bytes_past_host_0(),
        f"{row.title()}: the interface of host 0 has the bytes",
        f"{frames / 1e6:.1f} MB, of which packet sockets saw {seen.data_bytes / 1e6:.1f} MB",
    )


def _check_talk(row: Row, talk: KernelTalk) -> Check:
    return Check(
        talk.trips > 0 and talk.longest_s < TOO_SLOW_S,
        f"{row.title()}: the kernels' own TCP works meanwhile",
        f"{talk.trips} round trips, the longest of {talk.longest_s * 1e3:.0f} ms",
    )


def _check_stream(row: Row, stream: KernelStream) -> Check:
    return Check(
        stream.received > 0,
        f"{row.title()}: the kernels' iperf3 works meanwhile",
        f"{stream.runs} runs without an error, {stream.received / 1e6:.1f} MB received",
    )


# -- output


def table(title: str, some: List[Row]) -> str:
    """The rows side by side: the time of one iteration, and the bus bandwidth."""
    sizes = sorted({record["size"] for row in some for record in row.records})
    found: List[Dict[int, str]] = [
        {
            record["size"]: f"{record['time_us']:.0f} µs, {record['busbw_gbs']:.2f}"
            for record in row.records
        }
        for row in some
    ]
    header = ["all_reduce", *(row.transport.label() for row in some)]
    lines = [[size_text(size), *(by.get(size, "–") for by in found)] for size in sizes]
    columns = list(range(len(header)))
    return f"{title}: time, and bus bandwidth in GB/s\n\n{markdown(header, lines, columns)}\n"


def say(start: float, text: str) -> None:
    click.echo(f"[{time.monotonic() - start:4.0f} s] {text}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@json_option("all records and checks")
@click.option(
    "--inject-wrong",
    is_flag=True,
    help="Flip one received byte of each size; the demo must then fail.",
)
@click.option(
    "--last",
    default=64 << 20,
    show_default=True,
    type=click.IntRange(FIRST),
    help="Largest message, bytes.",
)
def main(json_path: Optional[Path], inject_wrong: bool, last: int) -> None:
    """Run all-reduce on two hosts, then four, over HARP and over kernel TCP.

    Exit: 0 if every check holds, 1 if one does not, 2 on wrong usage.
    """
    start = time.monotonic()
    done: List[Row] = []
    checks: List[Check] = []
    for row in rows():
        say(start, f"{row.title()} on {WIRE}, all_reduce ...")
        run_row(row, last, inject_wrong)
        done.append(row)
        for check in check_row(row):
            checks.append(check)
            say(start, f"  {'ok  ' if check.ok else 'FAIL'} {check.name}: {check.text}")
    for hosts, wire in ((2, WIRE), (4, f"{WIRE}-bridge")):
        some = [row for row in done if row.hosts == hosts]
        click.echo()
        click.echo(table(f"{hosts} hosts on {wire}", some))
    if json_path:
        records = [record for row in done for record in row.records]
        Document(records=records, extra={"checks": [asdict(c) for c in checks]}).save(json_path)
    failed = [check for check in checks if not check.ok]
    say(start, f"{len(checks) - len(failed)} of {len(checks)} checks hold")
    for check in failed:
        click.echo(f"FAIL {check.name}", err=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(prog_name="tools/demo")
