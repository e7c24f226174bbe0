# SPDX-License-Identifier: Apache-2.0
"""tools/jobs all-reduce: one operation by both backends, in turns on the same wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import click

from tools.measure.jobs import hosts as lab_hosts
from tools.measure.options import json_option
from tools.measure.stats import ratios, summarize
from tools.measure.tables import markdown, size_text

SIZES = (8, 65536, 1 << 20, 25 << 20)  # bytes: a scalar, and a bucket of DDP at last


def report(records: list[dict[str, Any]]) -> str:
    """A table: medians with ranges, and the median of the rounds' ratios."""
    rows = []
    for record in records:
        gloo, harp = record["gloo"], record["harp"]
        cells = [summarize([one * 1e6 for one in times]).text(0) for times in (gloo, harp)]
        rows.append([size_text(record["size"]), *cells, ratios(gloo, harp).text()])
    header = ["all_reduce", "Gloo (us)", "HARP (us)", "Gloo's time / HARP's"]
    return markdown(header, rows, right=(1, 2, 3))


@click.command("all-reduce")
@lab_hosts.wire_option
@lab_hosts.hosts_option()
@click.option("--rounds", default=11, show_default=True, help="Times that each pair is measured.")
@click.option("--size", "sizes", multiple=True, type=int, default=SIZES, help="Bytes; repeatable.")
@json_option("the records")
def all_reduce(
    wire: str, hosts: int, rounds: int, sizes: tuple[int, ...], json_path: Optional[Path]
) -> None:
    """Time all_reduce of float32 by both backends, in turns on the same wire."""
    lab_hosts.require("torch")
    with lab_hosts.failures_told():
        done = lab_hosts.run("all_reduce.py", rounds, *sizes, hosts=hosts, wire=wire)
    print(f"all_reduce of float32, {hosts} hosts, {done.wire}, {rounds} rounds: median (range)\n")
    print(report(done.records))
    lab_hosts.save(json_path, done.records, wire=done.wire, hosts=hosts)
