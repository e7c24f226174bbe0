# SPDX-License-Identifier: Apache-2.0
"""`harp stat`: shows counters and flows of running processes, and written traces."""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from ipaddress import IPv4Network
from itertools import groupby
from pathlib import Path
from typing import Optional

import click

from harp import _tables
from harp.cli import stat_peers
from harp.cli.containers import containers_option
from harp.cli.flow_options import jobs_option, peers_option, ports_option
from harp.observe import flow_sums, metrics, prometheus, statfile, trace
from harp.observe.flow_filter import FlowFilter
from harp.observe.message_times import in_ms, percentile_s
from harp.observe.statfile import Flow, Process

# -- text


def _ago(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def _flow_lines(flow: Flow, device: str) -> Iterator[str]:
    """A flow's lines in the format of `ss -ti`: the two ends, then the numbers with their names.
    device: its NIC, "" if the process has only one."""
    yield (
        f"  link {flow.link} flow {flow.flow} {flow.direction or '-'} {flow.state} "
        f"{flow.local} {flow.peer}" + (f" {device}" if device else "")
    )
    ssthresh = f"ssthresh:{flow.ssthresh} " if flow.ssthresh < 1 << 31 else ""  # no loss yet
    yield (
        f"      cwnd:{flow.cwnd} {ssthresh}mss:{flow.mss} "
        f"rtt:{flow.srtt_us / 1000:g}/{flow.rttvar_us / 1000:g} "
        f"minrtt:{flow.min_rtt_us / 1000:g} rto:{flow.rto_us / 1000:g} "
        f"retrans:{flow.retransmits} unacked:{flow.in_flight} snd_wnd:{flow.send_window} "
        f"rcv_wnd:{flow.receive_window} bytes_acked:{flow.bytes_out} "
        f"bytes_received:{flow.bytes_in} ack_wait:{flow.ack_wait_ms} "
        f"window_wait:{flow.window_wait_ms} device_wait:{flow.device_wait_ms} "
        f"receive_wait:{flow.receive_wait_ms}"
    )
    if any(flow.message_times):
        half, most = (in_ms(percentile_s(flow.message_times, percent)) for percent in (50, 99))
        yield (
            f"      messages:{sum(flow.message_times)} message_p50:{half}ms message_p99:{most}ms"
        )


def _shares(nics: list[Process], name: str) -> list[int]:
    """A counter's parts: of each NIC if the process has several, else of each instance."""
    if len(nics) > 1:
        return [nic.totals.get(name, 0) for nic in nics]
    return [instance[name] for instance in nics[0].instances]


def _counter_lines(nics: list[Process], everything: bool, explain: bool) -> Iterator[str]:
    """The counters of a process. Those of 0 appear only with `everything`."""
    sentences = metrics.documented() if explain else metrics.renamed()
    for name in nics[0].kinds:
        shares = _shares(nics, name)
        total = sum(shares)
        if total == 0 and not everything:
            continue
        split = f"  ({' + '.join(map(str, shares))})" if len(shares) > 1 else ""
        sentence = f"  {sentences[name]}" if name in sentences else ""
        yield f"  {name:<26}{total:>20}{split}{sentence}"


def table(nics: list[Process], counters: Iterable[str]) -> Iterator[str]:
    """The lines that describe a process, by the files of its NICs. counters: its lines of
    counters."""
    process = nics[0]
    rank = "" if process.rank is None else f"rank {process.rank} "
    yield (
        f"{process.command} {rank}pid {process.pid} on {process.host}, user {process.uid}, "
        f"up {_ago(time.time() - process.started)}, release {process.release}"
        + (f", job {process.job}" if process.job else "")
        + (f", {len(nics)} NICs" if len(nics) > 1 else "")
    )
    for nic in nics:
        yield f"  id {nic.id}" + (f", GPU {nic.gpu}" if nic.gpu else "")
        yield f"  {nic.device}, {nic.address}, {nic.config}"
        if nic.about:
            yield f"  {nic.about}"
    yield from counters
    for nic in nics:
        for flow in nic.flows:
            yield from _flow_lines(flow, nic.device if len(nics) > 1 else "")


# -- JSON


def as_json(processes: Iterable[Process]) -> str:
    """{"schema": "harp.stat/1", "processes": [...]}, fields as in harp.observe.statfile."""
    rows = [{**asdict(process), "totals": process.totals} for process in processes]
    return json.dumps({"schema": "harp.stat/1", "processes": rows}, indent=1)


# -- a trace


def _moment(nanoseconds: int) -> str:
    clock = time.localtime(nanoseconds // 10**9)
    return f"{time.strftime('%H:%M:%S', clock)}.{nanoseconds % 10**9:09}"


# Events of every poll, segment, chunk and message. They fill most of a trace.
FREQUENT = frozenset(
    (
        "poll",
        "sleep",
        "sent",
        "acked",
        "chunk_out",
        "chunk_in",
        "send_done",
        "receive_done",
        "receive_stall",
    )
)


def of_flows(found: trace.Trace, flows: Sequence[int]) -> trace.Trace:
    """The trace with the events of these flows alone. Raises LookupError if a flow has none."""
    present = {one.flow for one in found.records if one.flow is not None}
    for flow in flows:
        if flow not in present:
            named = ", ".join(map(str, sorted(present))) or "none"
            raise LookupError(
                f"the trace has no event of flow {flow}; its flows are: {named}; "
                "a flow's number is the port of this host, and the log names the peer's"
            )
    return replace(found, records=[one for one in found.records if one.flow in flows])


END_S = 3  # a window that tells a dead path from one that still carries ARP


def _frames_line(found: trace.Trace) -> str:
    """How many frames came and went before the trace's end. A dead path, a dropped direction and a
    path that carries ARP alone differ in these numbers."""
    end = max(record.time_ns for record in found.records)
    parts = []
    for way in ("in", "out"):
        moved = [
            (record.time_ns, count)
            for record in found.records
            if record.event == "poll" and (count := int(record.values[f"frames_{way}"]))
        ]
        count = sum(frames for moment, frames in moved if moment > end - END_S * 10**9)
        last = f"the last at {_moment(moved[-1][0])}" if moved else "none in this trace"
        parts.append(f"{count} {way} ({last})")
    covered = (end - min(record.time_ns for record in found.records)) / 10**9
    return f"frames in the last {min(END_S, covered):.1f} s of the trace: {', '.join(parts)}"


def _values(record: trace.Record) -> str:
    parts = [f"{name}={value}" for name, value in record.values.items()]
    known = errno.errorcode.get(int(record.values.get("errno", 0)))
    return " ".join([*parts, known] if known else parts)


def _runs(records: Sequence[trace.Record]) -> Iterator[list[trace.Record]]:
    """The records one by one, but those of the same event without numbers (port_full) in one list
    if nothing is between them: a device can be full thousands of times in a row."""
    alike = groupby(records, lambda one: (one.event, one.flow, one.instance, bool(one.values)))
    for (_, _, _, numbers), run in alike:
        if numbers:
            yield from ([record] for record in run)
        else:
            yield list(run)


def trace_lines(
    found: trace.Trace, hidden: Collection[str] = FREQUENT, explain: bool = False
) -> Iterator[str]:
    """The lines of a trace, the oldest event first, each with the time since the event before it.
    hidden: events without a line. explain: end with a sentence about each event that has a line."""
    shown = [record for record in found.records if record.event not in hidden]
    yield (
        f"pid {found.pid} on {found.host}, {found.device + ', ' if found.device else ''}"
        f"release {found.release}, "
        f"{time.strftime('%Y-%m-%d', time.localtime(found.written_ns // 10**9))}: "
        f"{found.reason}"
    )
    if len(shown) < len(found.records):
        yield (
            f"{len(found.records) - len(shown)} events of polls, segments, chunks and messages are "
            "hidden; --all-events shows them"
        )
    if any(record.event == "poll" for record in found.records):
        yield _frames_line(found)
    before: Optional[int] = None
    for run in _runs(shown):
        record = run[0]
        since = 0.0 if before is None else (record.time_ns - before) / 1000
        before = run[-1].time_ns
        flow = "-" if record.flow is None else str(record.flow)
        values = _values(record)
        if len(run) > 1:
            values = f"{len(run)} times until {_moment(before)}"
        yield (
            f"{_moment(record.time_ns)} {since:>+12.3f} us  instance {record.instance} "
            f"flow {flow:<5} {record.event:<16} {values}".rstrip()
        )
    if explain:
        named = {record.event for record in shown}
        for event in _tables.trace_events():
            if event["name"] in named:
                yield f"{event['name']:<16} {event['doc']}"


def _show_trace(
    path: Path, flows: Sequence[int], wants_json: bool, hidden: Collection[str], explain: bool
) -> None:
    try:
        found = trace.read(path)
        if flows:
            found = of_flows(found, flows)
    except OSError as failed:
        raise click.ClickException(f"{path}: {failed.strerror}") from None
    except trace.TraceError as wrong:
        raise click.ClickException(str(wrong)) from None
    except LookupError as missing:
        raise click.ClickException(str(missing.args[0])) from missing
    if wants_json:
        click.echo(json.dumps({"schema": "harp.trace/1", **asdict(found)}))
        return
    for line in trace_lines(found, hidden, explain):
        click.echo(line)


@click.command()
@click.option("--pid", "pids", type=int, multiple=True, help="Only this process; repeat for more.")
@click.option("--rank", "ranks", type=int, multiple=True, help="Only this rank; repeat for more.")
@click.option(
    "--id",
    "ids",
    multiple=True,
    help="Only the process with this id or prefix of an id. Pids are not unique across containers.",
)
@click.option(
    "--device", "devices", multiple=True, help="Only this NIC, such as eth1; repeat for more."
)
@jobs_option()
@peers_option("flows")
@ports_option("flows")
@click.option(
    "--state",
    "states",
    type=click.Choice(list(dict.fromkeys(statfile.TCP_STATES[1:])), case_sensitive=False),
    multiple=True,
    help="Only flows in this state; repeat for more.",
)
@click.option(
    "--by-peer", is_flag=True, help="Show the sums of the flows by peer, over all processes."
)
@containers_option
@click.option("--all", "everything", is_flag=True, help="Also show counters that are 0.")
@click.option("--explain", is_flag=True, help="Describe each counter, or each event of a trace.")
@click.option("--json", "wants_json", is_flag=True, help="Report as JSON.")
@click.option(
    "--prometheus", "wants_prometheus", is_flag=True, help="Report in Prometheus' text format."
)
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Show a trace that a process wrote after a fault.",
)
@click.option(
    "--flow",
    "flows",
    type=int,
    multiple=True,
    metavar="PORT",
    help="Only the trace's events of the flow with this local port; repeat for more.",
)
@click.option(
    "--all-events",
    "every_event",
    is_flag=True,
    help="Also show the trace's events of polls, segments, chunks and messages.",
)
@click.option(
    "--watch",
    type=click.FloatRange(0.1, 3600),
    metavar="SECONDS",
    help="Show a new report every so many seconds, until Ctrl-C.",
)
@click.option(
    "-n", "--count", type=click.IntRange(0), default=0, help="End after so many reports of --watch."
)
def stat(
    pids: tuple[int, ...],
    ranks: tuple[int, ...],
    ids: tuple[str, ...],
    devices: tuple[str, ...],
    jobs: tuple[str, ...],
    peers: tuple[IPv4Network, ...],
    ports: tuple[int, ...],
    states: tuple[str, ...],
    by_peer: bool,
    containers: bool,
    everything: bool,
    explain: bool,
    wants_json: bool,
    wants_prometheus: bool,
    trace_path: Optional[Path],
    flows: tuple[int, ...],
    every_event: bool,
    watch: Optional[float],
    count: int,
) -> None:
    """Show the counters and flows of the processes that run here with HARP.

    Reads only their files in the run folder, so it does not slow them down.

    --peer, --port and --state select flows, as filters of ss do. A flow must fit each
    of these options, and one of the values of a repeated option. The report then has
    these flows alone, and the processes that have such flows. Its text has no counters.
    """
    wanted = FlowFilter(peers, ports, states)
    if count and watch is None:
        raise click.UsageError("--count needs --watch")
    if watch is not None and trace_path is not None:
        raise click.UsageError("--watch and --trace: give one")
    if wants_json and wants_prometheus:
        raise click.UsageError("--json and --prometheus: give one")
    if wanted or by_peer:
        _refuse_beside_flows(trace_path, wants_prometheus, everything or explain)
    if trace_path is not None:
        hidden = frozenset() if every_event else FREQUENT
        _show_trace(trace_path, flows, wants_json, hidden, explain)
        return
    if flows or every_event:
        raise click.UsageError("--flow and --all-events need --trace")

    def processes() -> list[Process]:
        try:
            found = statfile.chosen(
                statfile.scan(containers=containers), pids, ranks, ids, devices, jobs
            )
        except LookupError as missing:
            raise click.ClickException(str(missing.args[0])) from missing
        return wanted.narrowed(found)

    def show() -> None:
        found = processes()
        if wants_prometheus:
            families = metrics.families(found, flow_sums.Readings())
            click.echo("\n".join(prometheus.lines(families)))
        elif wants_json:
            click.echo(
                stat_peers.as_json(flow_sums.of_open_flows(found)) if by_peer else as_json(found)
            )
        elif not found:
            what = "has such a flow here" if wanted else "runs here"
            click.echo(statfile.nobody(what, elsewhere=not containers))
        elif by_peer:
            click.echo("\n".join(stat_peers.table(flow_sums.of_open_flows(found))))
        else:
            for nics in statfile.grouped(found):
                counters = () if wanted else _counter_lines(nics, everything, explain)
                for line in table(nics, counters):
                    click.echo(line)

    if watch is None:
        show()
    else:
        _repeat(show, watch, count)


def _refuse_beside_flows(
    trace_path: Optional[Path], wants_prometheus: bool, of_counters: bool
) -> None:
    """Refuses options that say nothing about the flows of running processes."""
    flows = "--peer, --port, --state and --by-peer"
    if trace_path is not None:
        raise click.UsageError(
            f"{flows} select flows of running processes; --flow selects those of --trace"
        )
    if wants_prometheus:
        raise click.UsageError(
            f"{flows} select flows, and --prometheus also has counters of whole processes; "
            "select by the labels of the metrics"
        )
    if of_counters:
        raise click.UsageError(f"--all and --explain show counters; {flows} show flows alone")


def _repeat(show: Callable[[], None], seconds: float, count: int) -> None:
    """Shows `count` reports, 0: until Ctrl-C. Each takes the place of the last on a terminal."""
    shown = 0
    try:
        while True:
            if sys.stdout.isatty():
                click.clear()
            show()
            shown += 1
            if shown == count:
                return
            time.sleep(seconds)
    except KeyboardInterrupt:
        pass
