# SPDX-License-Identifier: Apache-2.0
"""What the jobs share: hosts, the rank programs and what rank 0 prints, options, the document."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Optional

import click

from tools.hosts.lab import Lab, LabError
from tools.hosts.relay import RelayError, RelaySpec
from tools.hosts.torch_job import TorchRank, end_well, sites, torch_job
from tools.measure.options import Decorator
from tools.measure.records import describe_host

PROGRAMS = Path(__file__).with_name("programs")
SCHEMA = "harp.jobs/1"
JOB_LIMIT_S = 900
PACKAGES = {"sklearn": "scikit-learn"}  # modules whose name for pip is another one

wire_option: Decorator = click.option(
    "--wire", default="veth-1500", show_default=True, help="Wire of the lab."
)


def hosts_option(default: int = 2, least: int = 2) -> Decorator:
    return click.option(
        "--hosts",
        default=default,
        show_default=True,
        type=click.IntRange(least, 16),
        help="Hosts, with a rank each." if least > 1 else "Hosts, which the ranks share.",
    )


def require(*modules: str) -> None:
    """Raises ClickException if a module is missing, with the command that installs it."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            package = PACKAGES.get(module, module)
            raise click.ClickException(f"no {package} here: .venv/bin/pip install {package}")


@contextmanager
def failures_told() -> Iterator[None]:
    """Turns failures of hosts and ranks into the command's error."""
    try:
        yield
    except (LabError, RelayError, AssertionError) as failure:
        raise click.ClickException(str(failure)) from None


def told(rank: TorchRank, begin: int = 0) -> list[dict[str, Any]]:
    """The records that a rank has printed from line `begin` on: its lines of JSON."""
    return [json.loads(line) for line in rank.printed[begin:] if line.startswith("{")]


class Run(NamedTuple):
    """What rank 0 has printed, and the wire of the lab: more than two hosts get a bridge."""

    records: list[dict[str, Any]]
    wire: str


def run(
    program: str,
    *args: object,
    hosts: int,
    wire: str = "veth-1500",
    relay: Optional[RelaySpec] = None,
    ranks: Optional[int] = None,
    limit_s: float = JOB_LIMIT_S,
) -> Run:
    """Runs a program of PROGRAMS with a rank on each host, or with `ranks` that share the hosts.
    HARP has its own number of instances, as for users.

    Raises LabError, RelayError, or AssertionError if a rank fails or limit_s passes.
    """
    with Lab(hosts=max(2, hosts), wire=wire, relay=relay) as lab, TemporaryDirectory() as folder:
        places = sites(Path(folder), lab, ranks or hosts, hosts, instances=None)
        with torch_job(places, PROGRAMS / program, *args) as job:
            end_well(job, limit_s)
            return Run(told(job[0]), lab.wire.name)


def save(path: Optional[Path], records: Sequence[dict[str, Any]], **facts: Any) -> None:
    """Writes the document of --json, if there is a path."""
    if path:
        document = {"schema": SCHEMA, "host": describe_host(), **facts, "records": records}
        path.write_text(json.dumps(document, indent=1) + "\n")
