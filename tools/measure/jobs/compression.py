# SPDX-License-Identifier: Apache-2.0
"""tools/jobs compression: what LightCC's compression gains on a slow wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import click

from tools.hosts.relay import RelaySpec
from tools.measure.jobs import hosts as lab_hosts
from tools.measure.options import json_option
from tools.measure.stats import ratios, summarize
from tools.measure.tables import markdown

WIRE = "veth-1500-nooff"  # a relay forwards single frames
RATE_MBPS = 1000
BUCKET = 25 << 20  # bytes: DDP's default


def report(record: dict[str, Any]) -> str:
    """A table: seconds of each way, plain's time divided by it, and plain's bytes divided by its
    bytes: as much faster is a way whose time is that of the wire alone."""
    # Plain sends 4 bytes of a value, fp16 sends 2, and top-k 8 of a chosen one: with its index.
    fewer = {"plain": 1, "fp16": 2, "top-k": 4 / (8 * record["ratio"])}
    rows = []
    for name, bytes_gain in fewer.items():
        times = record[name]
        rows.append([name, summarize([1e3 * one for one in times]).text(0),
                     ratios(record["plain"], times).text(1), f"{bytes_gain:g}"])  # fmt: skip
    header = ["way", "time (ms)", "plain's time / its", "plain's bytes / its"]
    return markdown(header, rows, right=(1, 2, 3))


def wire_share(record: dict[str, Any], mbps: int) -> float:
    """The share of the wire's rate that plain reaches: 2 ranks send a bucket once each way."""
    return float(8e-6 * record["size"] / summarize(record["plain"]).median / mbps)


@click.command("compression")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1),
              help="Times that each way is measured.")  # fmt: skip
@click.option("--mbps", default=RATE_MBPS, show_default=True, type=click.IntRange(1),
              help="Rate of the wire in Mbit/s, each way.")  # fmt: skip
@click.option("--size", default=BUCKET, show_default=True, type=click.IntRange(1 << 20),
              help="Bytes of the bucket.")  # fmt: skip
@json_option("the record")
def compression(rounds: int, mbps: int, size: int, json_path: Optional[Path]) -> None:
    """Reduce a bucket of gradients plain, in 16 bits and by top-k, on a wire of a limited rate.

    Two hosts, harp.light over harp, in turns. A relay between the hosts limits the rate.
    """
    lab_hosts.require("torch")
    spec = RelaySpec(rate_mbps=mbps)
    with lab_hosts.failures_told():
        [record], wire = lab_hosts.run(
            "compression.py", rounds, size, hosts=2, wire=WIRE, relay=spec
        )
    chosen = summarize([1e3 * one for one in record["choose"]]).text(0)
    print(f"{size} bytes of float32 at {mbps} Mbit/s, 2 hosts, {rounds} rounds: median (range)\n")
    print(report(record))
    share = f"{wire_share(record, mbps):.0%}"
    print(f"\nPlain reaches {share} of the wire's rate. Top-k sends {record['ratio']:.0%} of the "
          f"values, and takes {chosen} ms to choose them.")  # fmt: skip
    lab_hosts.save(json_path, [record], wire=wire, mbps=mbps)
