# SPDX-License-Identifier: Apache-2.0
"""The command tools/jobs: torch.distributed over HARP beside Gloo, on hosts of a lab."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any, Optional

import click

from tools.hosts.lab import Lab, LabError
from tools.hosts.torch_job import end_well, sites, torch_job
from tools.measure.records import describe_host
from tools.measure.stats import summarize
from tools.measure.tables import markdown, size_text

RANK_PROGRAM = Path(__file__).with_name("jobs_rank.py")
SCHEMA = "harp.jobs/1"
SIZES = (8, 65536, 1 << 20, 25 << 20)  # bytes: a scalar, and a bucket of DDP at last
JOB_LIMIT_S = 600


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Run jobs of torch.distributed over HARP and over Gloo."""


def measure(wire: str, hosts: int, rounds: int, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """The records of rank 0: size, and seconds of an operation in each round, for each backend.
    Raises LabError or AssertionError if the job fails."""
    words = [rounds, *sizes]
    with Lab(hosts=hosts, wire=wire) as lab, tempfile.TemporaryDirectory() as folder:
        places = sites(Path(folder), lab, hosts)
        with torch_job(places, RANK_PROGRAM, *words) as ranks:
            end_well(ranks, JOB_LIMIT_S)
            return [json.loads(line) for line in ranks[0].printed if line.startswith("{")]


def report(records: list[dict[str, Any]]) -> str:
    """A table: medians with ranges, and the median of the rounds' ratios."""
    rows = []
    for record in records:
        gloo, harp = record["gloo"], record["harp"]
        ratio = summarize([theirs / ours for theirs, ours in zip(gloo, harp)])
        cells = [summarize([one * 1e6 for one in times]).text(0) for times in (gloo, harp)]
        rows.append([size_text(record["size"]), *cells, ratio.text()])
    header = ["all_reduce", "Gloo (us)", "HARP (us)", "Gloo's time / HARP's"]
    return markdown(header, rows, right=(1, 2, 3))


@main.command("all-reduce")
@click.option("--wire", default="veth-1500", show_default=True, help="Wire of the lab.")
@click.option("--hosts", default=2, show_default=True, help="Hosts, with a rank each.")
@click.option("--rounds", default=11, show_default=True, help="Times that each pair is measured.")
@click.option("--size", "sizes", multiple=True, type=int, default=SIZES, help="Bytes; repeatable.")
@click.option("--json", "to", type=click.Path(path_type=Path), help="File for the records.")
def all_reduce(
    wire: str, hosts: int, rounds: int, sizes: tuple[int, ...], to: Optional[Path]
) -> None:
    """Time all_reduce of float32 by both backends, in turns on the same wire."""
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException("no torch here: .venv/bin/pip install torch")
    try:
        records = measure(wire, hosts, rounds, sizes)
    except (LabError, AssertionError) as failure:
        raise click.ClickException(str(failure)) from None
    print(f"all_reduce of float32, {hosts} hosts, {wire}, {rounds} rounds: median (range)\n")
    print(report(records))
    if to:
        document = {"schema": SCHEMA, "host": describe_host(), "wire": wire, "hosts": hosts}
        to.write_text(json.dumps({**document, "records": records}, indent=1))


if __name__ == "__main__":
    main()
