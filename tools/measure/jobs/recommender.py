# SPDX-License-Identifier: Apache-2.0
"""tools/jobs recommender: sparse embeddings that are split over the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import click

from tools.measure.jobs import hosts as lab_hosts
from tools.measure.options import json_option
from tools.measure.tables import markdown

TOLERANCE = 1e-4  # absolute: sums of gradients in another order; rows are about 1


def report(record: dict[str, Any]) -> str:
    rows = " + ".join(map(str, record["rows"]))
    losses = f"{record['loss_first']:.4f} → {record['loss_last']:.4f}"
    cells = [rows, str(record["rows_alone"]), losses, f"{record['loss_difference']:.0e}",
             f"{record['row_difference']:.0e}", f"{record['moved'] / 1e6:.2f}"]  # fmt: skip
    header = ["rows of the ranks", "rows of one process", "loss", "losses differ by",
              "rows differ by", "MB sent by rank 0"]  # fmt: skip
    return markdown(header, [cells], right=range(1, len(header)))


def is_right(record: dict[str, Any]) -> bool:
    """Whether losses and rows are those of one process, and rows lie on all ranks."""
    differences = (record["loss_difference"], record["row_difference"])
    whole = sum(record["rows"]) == record["rows_alone"] and all(record["rows"])
    return whole and all(one <= TOLERANCE for one in differences)


@click.command("recommender")
@lab_hosts.wire_option
@lab_hosts.hosts_option(3)
@click.option("--steps", default=50, show_default=True, type=click.IntRange(2))
@click.option("--seed", default=1, show_default=True, help="Seed of the batches.")
@click.option("--inject-wrong", is_flag=True, help="Change a row; the command must fail.")
@json_option("the record")
def recommender(
    wire: str, hosts: int, steps: int, seed: int, inject_wrong: bool, json_path: Optional[Path]
) -> None:
    """Train embeddings whose rows are split over the ranks, and made when an id first occurs.

    Rows and gradients move by all_to_all_single with uneven splits. The exit status is 1 unless
    losses and rows are those of one process with all batches.
    """
    lab_hosts.require("torch")
    args = (steps, seed, "inject-wrong" if inject_wrong else "sound")
    with lab_hosts.failures_told():
        [record], used = lab_hosts.run("recommender.py", *args, hosts=hosts, wire=wire)
    print(f"embeddings over {hosts} hosts, {used}, {steps} steps\n")
    print(report(record))
    lab_hosts.save(json_path, [record], wire=used, hosts=hosts, steps=steps, seed=seed)
    if not is_right(record):
        raise click.ClickException(
            "losses or rows are not those of one process: compare all_to_all_single by "
            "tests/collectives/test_against_gloo.py"
        )
