# SPDX-License-Identifier: Apache-2.0
"""`harp top`: shows the present rates of the processes with HARP."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network
from typing import Any, Optional

import click

from harp.cli import top_peers
from harp.cli.containers import containers_option
from harp.cli.flow_options import jobs_option, peers_option
from harp.observe import flow_sums, statfile
from harp.observe.flow_filter import FlowFilter
from harp.observe.message_times import for_json, in_ms
from harp.observe.statfile import Process

_HEADER = (
    f"{'ID':<8} {'RANK':>5} {'PID':>8} {'USER':>6} {'COMMAND':<16} {'DEVICE':<20} {'JOB':<12} "
    f"{'LINKS':>5} {'FLOWS':>5} {'OUT Gbit/s':>11} {'IN Gbit/s':>11} "
    f"{'MSG/s':>10} {'RETRANS/s':>10} {'DROPS/s':>8} {'STALLS/s':>8} "
    f"{'BUSY %':>7} "
    f"{'SEND99 ms':>9} {'RECV99 ms':>9}"
)

_DROPS = (
    "rx_drop_truncated",
    "rx_drop_checksum",
    "rx_drop_malformed",
    "tcp_memory_drops",
    "tcp_reassembly_drops",
    "port_rx_lost",
)


# What --sort takes: the field, and whether the largest comes first.
SORTS = {
    "rank": ("rank", False),
    "pid": ("pid", False),
    "command": ("command", False),
    "device": ("device", False),
    "links": ("links", True),
    "flows": ("flows", True),
    "out": ("out_gbit", True),
    "in": ("in_gbit", True),
    "messages": ("messages", True),
    "retransmits": ("retransmits", True),
    "drops": ("drops", True),
    "stalls": ("stalls", True),
    "busy": ("busy", True),
}


@dataclass(frozen=True)
class Rates:
    """The rates of a process on one of its NICs over one interval, per second. `stalls` are the
    times in which no thread polled for 0.2 s (the counter `poll_stalls`). `busy` is the percentage
    of polls that found work. 99 % of the messages of the interval took less than `send_p99` and
    `receive_p99` seconds; None: there was no message, inf: it took longer than the last bound. JSON
    has null for both."""

    id: str
    process_id: str
    job: str
    rank: Optional[int]
    host: str
    gpu: str
    pid: int
    uid: int
    command: str
    device: str
    links: int
    flows: int
    out_gbit: float
    in_gbit: float
    messages: float
    retransmits: float
    drops: float
    stalls: float
    busy: float
    send_p99: Optional[float]
    receive_p99: Optional[float]


def rates(before: Process, now: Process, seconds: float) -> Rates:
    """The rates between two readings of a process."""
    old, new = before.totals, now.totals

    def moved(*names: str) -> int:
        return sum(new.get(name, 0) - old.get(name, 0) for name in names)

    polls = moved("polls")
    flows = flow_sums.total(flow_sums.between(before, now).values())
    return Rates(
        id=now.id,
        process_id=now.process_id,
        job=now.job,
        rank=now.rank,
        host=now.host,
        gpu=now.gpu,
        pid=now.pid,
        uid=now.uid,
        command=now.command,
        device=now.device,
        links=new.get("links", 0),
        flows=new.get("tcp_established", 0),
        out_gbit=moved("tx_bytes") * 8e-9 / seconds,
        in_gbit=moved("rx_bytes") * 8e-9 / seconds,
        messages=moved("messages_out", "messages_in") / seconds,
        retransmits=moved("tcp_retransmits") / seconds,
        drops=moved(*_DROPS) / seconds,
        stalls=moved("poll_stalls") / seconds,
        busy=100.0 * (polls - moved("polls_idle")) / polls if polls else 0.0,
        send_p99=flows.p99_s("S"),
        receive_p99=flows.p99_s("R"),
    )


def line(one: Rates) -> str:
    rank = "-" if one.rank is None else one.rank
    return (
        f"{one.id[:8]} {rank:>5} {one.pid:>8} {one.uid:>6} "
        f"{one.command[:16]:<16} {one.device[:20]:<20} {one.job[:12] or '-':<12} "
        f"{one.links:>5} {one.flows:>5} {one.out_gbit:>11.3f} {one.in_gbit:>11.3f} "
        f"{one.messages:>10.0f} {one.retransmits:>10.1f} {one.drops:>8.1f} {one.stalls:>8.1f} "
        f"{one.busy:>7.1f} "
        f"{in_ms(one.send_p99):>9} {in_ms(one.receive_p99):>9}"
    )


def in_order(view: Sequence[Rates], sort: Optional[str]) -> list[Rates]:
    """The rates in the order of a key of SORTS; None: as they are. Unknown ranks come last."""
    if sort is None:
        return list(view)
    name, largest_first = SORTS[sort]

    def place(one: Rates) -> tuple[bool, Any]:
        value = getattr(one, name)
        return value is None, 0 if value is None else value

    return sorted(view, key=place, reverse=largest_first)


def _key(process: Process) -> tuple[str, int]:
    """An id is unique among a user's files. A path in /proc may soon be that of another file."""
    return process.id, process.uid


def chosen(
    processes: Sequence[Process],
    peers: Sequence[IPv4Network],
    devices: Sequence[str],
    jobs: Sequence[str],
) -> set[tuple[str, int]]:
    """The keys of the processes of one of these jobs on one of these devices that have a flow with
    a peer in one of these networks; all without a choice."""
    return {
        _key(process)
        for process in FlowFilter(peers=tuple(peers)).narrowed(processes)
        if (not devices or statfile.is_on(process, devices)) and (not jobs or process.job in jobs)
    }


@dataclass(frozen=True)
class Interval:
    """Two readings of each process, `seconds` apart."""

    pairs: list[tuple[Process, Process]]
    seconds: float


def intervals(
    seconds: float,
    count: int,
    peers: Sequence[IPv4Network] = (),
    devices: Sequence[str] = (),
    containers: bool = False,
    jobs: Sequence[str] = (),
) -> Iterator[Interval]:
    """Yields `count` intervals; 0: without end. A process appears from its second reading on."""
    before = {_key(process): process for process in statfile.scan(containers=containers)}
    read_at = time.monotonic()
    shown = 0
    while count == 0 or shown < count:
        time.sleep(seconds)
        now = {_key(process): process for process in statfile.scan(containers=containers)}
        passed, read_at = time.monotonic() - read_at, time.monotonic()
        wanted = chosen(list(now.values()), peers, devices, jobs)
        pairs = [
            (before[key], process)
            for key, process in now.items()
            if key in before and key in wanted
        ]
        yield Interval(pairs, passed)
        before = now
        shown += 1


@click.command()
@click.option(
    "-d",
    "--delay",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two views.",
)
@click.option(
    "-n",
    "--count",
    type=click.IntRange(0),
    default=0,
    help="Exit after this number of views [run until Ctrl-C].",
)
@click.option(
    "--sort",
    type=click.Choice(list(SORTS)),
    help="Order of the lines; rates begin with the largest [the oldest process first].",
)
@jobs_option()
@peers_option("processes that have flows")
@click.option(
    "--device", "devices", multiple=True, help="Only this NIC, such as eth1; repeat for more."
)
@click.option(
    "--by-peer",
    is_flag=True,
    help="Show a line for each peer, over all processes, with the seconds in each second that "
    "flows waited.",
)
@containers_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a view, each a line.")
def top(
    delay: float,
    count: int,
    sort: Optional[str],
    jobs: tuple[str, ...],
    peers: tuple[IPv4Network, ...],
    devices: tuple[str, ...],
    by_peer: bool,
    containers: bool,
    as_json: bool,
) -> None:
    """Show the rates of the processes that run here with HARP, live: a line for each NIC that a
    process uses."""
    if by_peer and sort is not None:
        raise click.UsageError(
            "--sort orders processes; the lines of --by-peer have the order of the addresses"
        )
    try:
        for found in intervals(delay, count, peers, devices, containers, jobs):
            if as_json:
                click.echo(json.dumps(_document(found, peers, sort, by_peer)))
                continue
            if sys.stdout.isatty():
                click.clear()
            is_choice = bool(peers or devices or jobs)
            for one in _lines(found, peers, is_choice, sort, by_peer, containers):
                click.echo(one)
    except KeyboardInterrupt:
        pass


def _peer_rates(interval: Interval, peers: Sequence[IPv4Network]) -> list[top_peers.PeerRates]:
    """Only flows with a peer in one of the networks count."""
    wanted = FlowFilter(peers=tuple(peers))
    pairs = [(wanted.only(before), wanted.only(now)) for before, now in interval.pairs]
    return top_peers.rates(pairs, interval.seconds)


def _process_rates(interval: Interval, sort: Optional[str]) -> list[Rates]:
    return in_order([rates(*pair, interval.seconds) for pair in interval.pairs], sort)


def _document(
    interval: Interval, peers: Sequence[IPv4Network], sort: Optional[str], by_peer: bool
) -> dict[str, Any]:
    """A view as JSON."""
    if by_peer:
        view: Sequence[Any] = _peer_rates(interval, peers)
        schema, name = "harp.top.peers/1", "peers"
    else:
        view = _process_rates(interval, sort)
        schema, name = "harp.top/1", "processes"
    return {"schema": schema, "time": time.time(), name: [for_json(asdict(one)) for one in view]}


def _lines(
    interval: Interval,
    peers: Sequence[IPv4Network],
    is_choice: bool,
    sort: Optional[str],
    by_peer: bool,
    containers: bool,
) -> Iterator[str]:
    """A view as text. is_choice: the user chose among the processes."""
    if by_peer:
        yield from top_peers.table(_peer_rates(interval, peers))
    else:
        yield from (_HEADER, *map(line, _process_rates(interval, sort)))
    if not interval.pairs:
        chosen_by = "and such a job, peer or NIC " if is_choice else ""
        yield statfile.nobody(
            f"{chosen_by}ran here for the whole interval", elsewhere=not containers
        )
