# SPDX-License-Identifier: Apache-2.0
"""tools/jobs ddp: small models train by DDP over HARP and over Gloo, with the same seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import click

from tools.measure.jobs import hosts as lab_hosts
from tools.measure.options import json_option
from tools.measure.stats import largest, ratios, summarize
from tools.measure.tables import markdown

MODELS = ("vision", "transformer", "wide")
# Sums of float32 depend on their order, and so on the algorithm, in the last of 24 bits. Training
# carries these differences on from step to step.
TOLERANCE = 1e-4
WARM_UP = 2  # steps, which make buckets and links and are not timed


def difference(record: dict[str, Any]) -> float:
    """The largest difference of two losses of the same step, relative to Gloo's; infinity if a loss
    is not finite."""
    pairs = zip(record["losses"]["gloo"], record["losses"]["harp"])
    return largest(abs(harp - gloo) / abs(gloo) for gloo, harp in pairs)


def report(records: list[dict[str, Any]], hosts: int) -> str:
    """A table: last losses with their largest difference, and times of a step."""
    rows = []
    for record in records:
        gloo, harp = (record["seconds"][name][WARM_UP:] for name in ("gloo", "harp"))
        rows.append([
            record["model"],
            str(hosts),
            *(f"{record['losses'][name][-1]:.5f}" for name in ("gloo", "harp")),
            f"{difference(record):.0e}",
            *(summarize([1e3 * one for one in times]).text(1) for times in (gloo, harp)),
            f"{ratios(harp, gloo).median:.2f}",
        ])  # fmt: skip
    header = ["model", "hosts", "Gloo's loss", "HARP's loss", "largest difference",
              "Gloo's step (ms)", "HARP's step (ms)", "HARP's step / Gloo's"]  # fmt: skip
    return markdown(header, rows, right=range(1, len(header)))


@click.command("ddp")
@lab_hosts.wire_option
@click.option("--hosts", "counts", multiple=True, type=click.IntRange(2, 16), default=(2, 4),
              show_default=True, help="Hosts, with a rank each; repeatable.")  # fmt: skip
@click.option("--model", "models", multiple=True, type=click.Choice(MODELS), default=MODELS,
              show_default=True, help="Repeatable. vision needs scikit-learn.")  # fmt: skip
@click.option("--steps", default=60, show_default=True, type=click.IntRange(WARM_UP + 1))
@click.option("--seed", default=1, show_default=True, help="Seed of parameters and batches.")
@click.option(
    "--inject-wrong",
    is_flag=True,
    help="Double the gradients of a step over HARP; the command must fail.",
)
@json_option("the records")
def ddp(
    wire: str, counts: tuple[int, ...], models: tuple[str, ...], steps: int, seed: int,
    inject_wrong: bool, json_path: Optional[Path],
) -> None:  # fmt: skip
    """Train by DDP over both backends, in turns: equal losses, and times of a step.

    vision learns scikit-learn's digits, transformer the text of this project's pages, and wide is
    bound by communication. The exit status is 1 if a loss differs from Gloo's by more than
    rounding.
    """
    lab_hosts.require("torch", *(["sklearn"] if "vision" in models else []))
    sound = "inject-wrong" if inject_wrong else "sound"
    found, worst = [], 0.0
    for hosts in counts:
        with lab_hosts.failures_told():
            done = lab_hosts.run("ddp.py", steps, seed, sound, *models, hosts=hosts, wire=wire)
        print(f"DDP, {hosts} hosts, {done.wire}, {steps} steps; times: median (range)\n")
        print(report(done.records, hosts), "\n")
        worst = max([worst, *map(difference, done.records)])
        found += [{"hosts": hosts, "wire": done.wire, **record} for record in done.records]
    lab_hosts.save(json_path, found, steps=steps, seed=seed)
    if not worst <= TOLERANCE:
        raise click.ClickException(
            f"a loss over HARP differs from Gloo's by {worst:.1e} of it; at most {TOLERANCE:.0e} "
            "is rounding: compare the collectives by tests/collectives/test_against_gloo.py"
        )
