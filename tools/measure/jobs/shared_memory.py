# SPDX-License-Identifier: Apache-2.0
"""tools/jobs shared-memory: each collective of ranks that share hosts, by windows and by links, in
turns."""

from __future__ import annotations

from pathlib import Path
from statistics import quantiles
from typing import Any, Optional

import click

from tools.measure.jobs import hosts as lab_hosts
from tools.measure.options import json_option
from tools.measure.tables import markdown, size_text

SIZES = (8, 65536, 1 << 20, 16 << 20)  # bytes


def ratio_text(ours: list[float], theirs: list[float]) -> str:
    """The median of the pairs' ratios, with their quartiles."""
    low, middle, high = quantiles([a / b for a, b in zip(ours, theirs)], n=4, method="inclusive")
    return f"{middle:.1f} ({low:.1f}–{high:.1f})"


def report(records: list[dict[str, Any]]) -> str:
    rows = []
    for record in records:
        size = size_text(record["size"]) if record["size"] else ""
        cells = [
            ratio_text(record[figure]["links"], record[figure]["windows"])
            for figure in ("seconds", "cpu_seconds")
        ]
        rows.append([record["operation"], size, *cells])
    header = ["operation", "bytes", "links' time / windows'", "links' CPU time / windows'"]
    return markdown(header, rows, right=(1, 2, 3))


@click.command("shared-memory")
@lab_hosts.wire_option
@lab_hosts.hosts_option(1, least=1)
@click.option("--ranks", default=4, show_default=True, type=click.IntRange(2, 64),
              help="Ranks of all hosts together.")  # fmt: skip
@click.option("--rounds", default=11, show_default=True, type=click.IntRange(2),
              help="Times that each pair is measured.")  # fmt: skip
@click.option("--size", "sizes", multiple=True, type=click.IntRange(4), default=SIZES,
              help="Bytes of the largest tensor of a rank; repeatable.")  # fmt: skip
@json_option("the records")
def shared_memory(
    wire: str,
    hosts: int,
    ranks: int,
    rounds: int,
    sizes: tuple[int, ...],
    json_path: Optional[Path],
) -> None:
    """Time each collective, with shared memory and with links between the ranks of a host."""
    lab_hosts.require("torch")
    with lab_hosts.failures_told():
        done = lab_hosts.run(
            "shared_memory.py", rounds, *sizes, hosts=hosts, wire=wire, ranks=ranks
        )
    print(f"collectives of {ranks} ranks, hosts: {hosts}, {done.wire}, {rounds} rounds: median of "
          "the ratios (quartiles)\n")  # fmt: skip
    print(report(done.records))
    lab_hosts.save(json_path, done.records, wire=done.wire, hosts=hosts, ranks=ranks)
