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
TARGETS = {"fp16": 1.8, "top-k": 10.0}


def report(record: dict[str, Any]) -> str:
    """A table: seconds of each way, and plain's time divided by it."""
    rows = []
    for name in ("plain", *TARGETS):
        times = record[name]
        gain = ratios(record["plain"], times)
        target = TARGETS.get(name)
        verdict = "" if target is None else "met" if gain.median >= target else "missed"
        goal = "" if target is None else f"{target:g}"
        rows.append([name, summarize([1e3 * one for one in times]).text(0), gain.text(1), goal,
                     verdict])  # fmt: skip
    header = ["way", "time (ms)", "plain's time / its", "target", "verdict"]
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
        [record] = lab_hosts.run("compression.py", rounds, size, hosts=2, wire=WIRE, relay=spec)
    chosen = summarize([1e3 * one for one in record["choose"]]).text(0)
    print(f"{size} bytes of float32 at {mbps} Mbit/s, 2 hosts, {rounds} rounds: median (range)\n")
    print(report(record))
    share = f"{wire_share(record, mbps):.0%}"
    print(f"\nPlain reaches {share} of the wire's rate. Top-k sends {record['ratio']:.0%} of the "
          f"values, and takes {chosen} ms to choose them.")  # fmt: skip
    lab_hosts.save(json_path, [record], wire=WIRE, mbps=mbps)
