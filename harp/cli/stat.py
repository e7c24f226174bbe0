# SPDX-License-Identifier: Apache-2.0
"""`harp stat`: shows counters and flows of running processes, and written traces."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

import click

from harp import _tables
from harp.observe import statfile, trace
from harp.observe.statfile import Flow, Process


def documented() -> dict[str, str]:
    """The description of each counter."""
    return {counter["name"]: counter["doc"] for counter in _tables.counters()}


# -- text


def _ago(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def _flow_lines(flow: Flow) -> Iterator[str]:
    """A flow's lines in the format of `ss -ti`: the two ends, then the numbers with their names."""
    yield (
        f"  link {flow.link} flow {flow.flow} {flow.direction or '-'} {flow.state} "
        f"{flow.local} {flow.peer}"
    )
    ssthresh = f"ssthresh:{flow.ssthresh} " if flow.ssthresh < 1 << 31 else ""  # no loss yet
    yield (
        f"      cwnd:{flow.cwnd} {ssthresh}mss:{flow.mss} "
        f"rtt:{flow.srtt_us / 1000:g}/{flow.rttvar_us / 1000:g} "
        f"minrtt:{flow.min_rtt_us / 1000:g} rto:{flow.rto_us / 1000:g} "
        f"retrans:{flow.retransmits} unacked:{flow.in_flight} snd_wnd:{flow.send_window} "
        f"rcv_wnd:{flow.receive_window} bytes_acked:{flow.bytes_out} "
        f"bytes_received:{flow.bytes_in}"
    )


def table(process: Process, everything: bool, explain: bool) -> Iterator[str]:
    """The lines that describe a process. Counters of 0 appear only with `everything`."""
    rank = "" if process.rank is None else f"rank {process.rank} "
    yield (
        f"{process.command} {rank}pid {process.pid} on {process.host}, user {process.uid}, "
        f"up {_ago(time.time() - process.started)}, release {process.release}"
    )
    yield f"  id {process.id}" + (f", GPU {process.gpu}" if process.gpu else "")
    yield f"  {process.device}, {process.address}, {process.config}"
    if process.about:
        yield f"  {process.about}"
    sentences = documented() if explain else {}
    for name, total in process.totals.items():
        if total == 0 and not everything:
            continue
        shares = [instance[name] for instance in process.instances]
        split = f"  ({' + '.join(map(str, shares))})" if len(shares) > 1 else ""
        sentence = f"  {sentences[name]}" if name in sentences else ""
        yield f"  {name:<26}{total:>20}{split}{sentence}"
    for flow in process.flows:
        yield from _flow_lines(flow)


# -- JSON and Prometheus


def as_json(processes: Iterable[Process]) -> str:
    """{"schema": "harp.stat/1", "processes": [...]}, fields as in harp.observe.statfile."""
    rows = [{**asdict(process), "totals": process.totals} for process in processes]
    return json.dumps({"schema": "harp.stat/1", "processes": rows}, indent=1)


def _labels(**labels: Any) -> str:
    def escaped(value: Any) -> str:
        return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())


def _identity(process: Process) -> dict[str, Any]:
    """Labels that identify one process. An id is unique among a user's files, so `uid` is one of
    them."""
    return {
        "rank": "" if process.rank is None else process.rank,
        "host": process.host,
        "gpu": process.gpu,
        "device": process.device,
        "id": process.id,
        "uid": process.uid,
    }


def prometheus(processes: list[Process]) -> Iterator[str]:
    """Prometheus' text format: one family for each counter, one sample for each instance.

    The pid is no label: many processes in containers have pid 1.
    """
    yield "# HELP harp_process_info A process with HARP in it."
    yield "# TYPE harp_process_info gauge"
    for process in processes:
        labels = _labels(
            **_identity(process),
            address=process.address,
            command=process.command,
            release=process.release,
        )
        yield f"harp_process_info{{{labels}}} 1"
    yield "# HELP harp_process_start_time_seconds When the process began, since the epoch."
    yield "# TYPE harp_process_start_time_seconds gauge"
    for process in processes:
        labels = _labels(**_identity(process))
        yield f"harp_process_start_time_seconds{{{labels}}} {process.started:.3f}"
    sentences = documented()
    for family, (name, kind) in _families(processes).items():
        yield f"# HELP {family} {sentences.get(name, name)}"
        yield f"# TYPE {family} {'gauge' if kind == 'gauge' else 'counter'}"
        for process in processes:
            if process.kinds.get(name) != kind:
                continue
            for number, instance in enumerate(process.instances):
                labels = _labels(**_identity(process), instance=number)
                yield f"{family}{{{labels}}} {instance[name]}"


def _families(processes: list[Process]) -> dict[str, tuple[str, str]]:
    """The counter and kind of each family. The counters of this release come first: a file of
    another release must not change the kind of one, or duplicate a family."""
    named = {counter["name"]: counter["kind"] for counter in _tables.counters()}
    pairs = list(named.items())
    for process in processes:
        pairs += process.kinds.items()
    families: dict[str, tuple[str, str]] = {}
    for name, kind in pairs:
        family = f"harp_{name}" if kind == "gauge" else f"harp_{name}_total"
        families.setdefault(family, (name, kind))
    published = {name for process in processes for name in process.kinds}
    return {family: one for family, one in families.items() if one[0] in published}


# -- a trace


def _moment(nanoseconds: int) -> str:
    clock = time.localtime(nanoseconds // 10**9)
    return f"{time.strftime('%H:%M:%S', clock)}.{nanoseconds % 10**9:09}"


def trace_lines(found: trace.Trace) -> Iterator[str]:
    """The lines of a trace, the oldest event first, each with the time since the previous one."""
    yield (
        f"pid {found.pid} on {found.host}, release {found.release}, "
        f"{time.strftime('%Y-%m-%d', time.localtime(found.written_ns // 10**9))}: "
        f"{found.reason}"
    )
    before: Optional[int] = None
    for record in found.records:
        since = 0.0 if before is None else (record.time_ns - before) / 1000
        before = record.time_ns
        flow = "-" if record.flow is None else str(record.flow)
        values = " ".join(f"{name}={value}" for name, value in record.values.items())
        yield (
            f"{_moment(record.time_ns)} {since:>+12.3f} us  instance {record.instance} "
            f"flow {flow:<5} {record.event:<16} {values}".rstrip()
        )


def _show_trace(path: Path, wants_json: bool) -> None:
    try:
        found = trace.read(path)
    except (OSError, trace.TraceError) as wrong:
        raise click.ClickException(str(wrong)) from wrong
    if wants_json:
        click.echo(json.dumps({"schema": "harp.observe.trace/1", **asdict(found)}))
        return
    for line in trace_lines(found):
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
@click.option("--all", "everything", is_flag=True, help="Also show counters that are 0.")
@click.option("--explain", is_flag=True, help="Describe each counter.")
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
def stat(
    pids: tuple[int, ...],
    ranks: tuple[int, ...],
    ids: tuple[str, ...],
    everything: bool,
    explain: bool,
    wants_json: bool,
    wants_prometheus: bool,
    trace_path: Optional[Path],
) -> None:
    """Show the counters and flows of the processes that run here with HARP.

    Reads only their files in the run folder, so it does not slow them down.
    """
    if wants_json and wants_prometheus:
        raise click.UsageError("--json and --prometheus: give one")
    if trace_path is not None:
        _show_trace(trace_path, wants_json)
        return
    try:
        processes = statfile.chosen(statfile.scan(), pids, ranks, ids)
    except LookupError as missing:
        raise click.ClickException(str(missing.args[0])) from missing
    if wants_json:
        click.echo(as_json(processes))
    elif wants_prometheus:
        click.echo("\n".join(prometheus(processes)))
    elif not processes:
        click.echo(
            f"no process with HARP runs here (looked in {', '.join(map(str, statfile.folders()))})"
        )
    else:
        for process in processes:
            for line in table(process, everything, explain):
                click.echo(line)
