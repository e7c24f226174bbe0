# SPDX-License-Identifier: Apache-2.0
"""`harp exporter`: serves the metrics of all processes of a node to Prometheus."""

from __future__ import annotations

import glob
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Optional

import click

from harp.cli.containers import containers_option
from harp.cli.printed_files import OF_EXPORTER
from harp.observe import ended, metrics, statfile
from harp.observe.flow_sums import Readings
from harp.observe.prometheus import Family

DEFAULT_LISTEN = "127.0.0.1:9752"


class Collector:
    """Reads the statistics files at each scrape. Prometheus' client calls `collect` in the thread
    of each request; one reading runs at a time. whole: as for Readings."""

    def __init__(
        self, patterns: Sequence[str], containers: bool = False, whole: bool = False
    ) -> None:
        self._patterns = patterns
        self._containers = containers
        self._readings = Readings(whole)
        self._last = ended.LastReadings()
        self._lock = threading.Lock()
        self._read = 0.0  # when the latest reading ended
        self._timer: Optional[threading.Timer] = None

    def folders(self) -> list[Path]:
        """The run folder of this host with its fallbacks, and the folders that match the patterns
        now: those of containers come and go."""
        matching = [Path(one) for pattern in self._patterns for one in sorted(glob.glob(pattern))]
        return [*statfile.folders(), *matching]

    def families(self) -> list[Family]:
        """A reading of all processes that run now, and of those that have ended lately."""
        with self._lock:
            found = statfile.scan(self.folders(), self._containers)
            families = metrics.families([*found, *self._last.add(found)], self._readings)
            self._close_later()
            return families

    def _close_later(self) -> None:
        """Closes the files of the processes if no other reading comes for a while."""
        if self._timer:
            self._timer.cancel()
        self._read = time.monotonic()
        self._timer = threading.Timer(ended.SHOWN_S, self._close)
        self._timer.daemon = True
        self._timer.start()

    def _close(self) -> None:
        with self._lock:
            if time.monotonic() - self._read >= ended.SHOWN_S:  # a reading may have come meanwhile
                self._last.close()

    def collect(self) -> Iterable[Any]:
        """The families as prometheus_client wants them, with counters named without their end."""
        from prometheus_client.core import Metric

        for family in self.families():
            name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
            metric = Metric(name, family.sentence, family.kind)
            for sample, labels, value in family.samples:
                metric.add_sample(sample, labels, value)
            yield metric


def endpoint(text: str) -> tuple[str, int]:
    """ADDRESS:PORT or [ADDRESS]:PORT as address and port. Raises BadParameter."""
    address, colon, port = text.rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    if not colon or not address or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not ADDRESS:PORT, such as 0.0.0.0:9752")
    return address, int(port)


def _registry(patterns: Sequence[str], containers: bool, whole: bool) -> Any:
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        raise click.ClickException(
            "the package prometheus_client is missing; install it with: "
            f"{sys.executable} -m pip install 'harp-nccl[exporter]'"
        ) from None
    registry = CollectorRegistry()
    registry.register(Collector(patterns, containers, whole))
    return registry


def _serve(registry: Any, listen: str) -> None:
    from prometheus_client import start_http_server

    address, port = endpoint(listen)
    try:
        start_http_server(port, address, registry)
    except OSError as failed:
        raise click.ClickException(
            f"cannot listen on {listen}: {failed.strerror or failed}; give another --listen"
        ) from None
    click.echo(f"metrics are on http://{listen}/metrics", err=True)


def _write(registry: Any, path: Path) -> None:
    """Writes the metrics to a temporary file beside the path, and renames it. Raises OSError."""
    from prometheus_client import write_to_textfile

    try:
        write_to_textfile(str(path), registry)
    except BaseException:  # the library leaves it there if SIGTERM or Ctrl-C ends the process
        for left in path.parent.glob(f"{glob.escape(path.name)}.{os.getpid()}.*"):
            left.unlink(missing_ok=True)
        raise


def _write_always(registry: Any, path: Path, interval: float) -> None:
    """Writes until SIGTERM or Ctrl-C, and then removes the file: the numbers of an exporter that
    has ended must not look like those of running processes."""
    try:
        while True:
            time.sleep(interval)
            try:
                _write(registry, path)
            except OSError as failed:
                click.echo(f"{path}: {failed.strerror}; the metrics there are old", err=True)
    finally:
        path.unlink(missing_ok=True)


def _end(number: int, _: Optional[FrameType]) -> None:
    raise SystemExit(0)


@click.group(invoke_without_command=True)
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    help=f"Where to serve HTTP [{DEFAULT_LISTEN}, or nowhere with --textfile].",
)
@click.option(
    "--folder",
    "patterns",
    multiple=True,
    metavar="FOLDER",
    help="Also read this folder, such as that of a container; * matches many; repeat for more.",
)
@containers_option
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the metrics to this file, for the textfile collector of the node exporter.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=15.0,
    show_default=True,
    help="Seconds between two writes of the file.",
)
@click.option("--once", is_flag=True, help="Write the file once, and exit.")
@click.pass_context
def exporter(
    context: click.Context,
    listen: Optional[str],
    patterns: tuple[str, ...],
    containers: bool,
    textfile: Optional[Path],
    interval: float,
    once: bool,
) -> None:
    """Serve the metrics of all processes with HARP on this node to Prometheus.

    One exporter serves a node, also for processes in containers. It reads only their files in the
    run folders, so it does not slow them down.
    """
    if context.invoked_subcommand:
        return
    if once and (listen or not textfile):
        raise click.UsageError("--once needs --textfile, and no --listen")
    registry = _registry([os.path.expanduser(pattern) for pattern in patterns], containers, once)
    signal.signal(signal.SIGTERM, _end)
    with suppress(KeyboardInterrupt):
        if listen or not textfile:
            _serve(registry, listen or DEFAULT_LISTEN)
        try:
            if textfile:
                _write(registry, textfile)
        except OSError as failed:
            raise click.ClickException(
                f"cannot write {textfile}: {failed.strerror}; give --textfile a folder that exists"
            ) from None
        if once:
            return
        if textfile:
            _write_always(registry, textfile, interval)
        while True:
            signal.pause()


exporter.add_command(
    OF_EXPORTER.command(
        "Print a unit of systemd, Prometheus' scrape configuration and alert rules, or a dashboard "
        "for Grafana."
    )
)
