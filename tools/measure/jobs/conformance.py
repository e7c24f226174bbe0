# SPDX-License-Identifier: Apache-2.0
"""tools/jobs conformance: every collective gives what Gloo gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import click

from tools.measure.jobs import hosts as lab_hosts
from tools.measure.options import json_option
from tools.measure.tables import markdown

LIMIT_S = 2 * 3600
SHOWN = 20  # wrong results


def report(records: Sequence[dict[str, Any]]) -> str:
    rows = [[str(one[key]) for key in ("group", "compared")] + [str(len(one["wrong"]))]
            for one in records]  # fmt: skip
    return markdown(["ranks", "results of a rank", "wrong, of all ranks"], rows, right=(0, 1, 2))


@click.command("conformance")
@lab_hosts.hosts_option(4, least=1)
@click.option("--group", "groups", multiple=True, type=click.IntRange(2), default=(2, 3, 4, 8),
              show_default=True, help="Ranks of a group; repeatable.")  # fmt: skip
@click.option("--short", is_flag=True, help="Fewer sizes and types, of at most 400 KB.")
@click.option("--inject-wrong", is_flag=True, help="Change a result, to see the check fail. Short.")
@json_option("the results")
def conformance(
    hosts: int, groups: tuple[int, ...], short: bool, inject_wrong: bool,
    json_path: Optional[Path],
) -> None:  # fmt: skip
    """Compare every collective with Gloo, by type, size and number of ranks.

    Sizes reach from 0 bytes to 64 MiB. The ranks take turns on the hosts. The exit status is 1
    unless all results are equal, of floats within rounding.
    """
    lab_hosts.require("torch")
    form = "spoiled" if inject_wrong else "short" if short else "full"
    ranks = max(groups)
    hosts = min(hosts, ranks)
    with lab_hosts.failures_told():
        records, wire = lab_hosts.run(
            "conformance.py", form, *groups, hosts=hosts, ranks=ranks, limit_s=LIMIT_S
        )
    print(f"Collectives over HARP beside Gloo, {hosts} hosts, {wire}, {form}\n")
    print(report(records))
    lab_hosts.save(json_path, records, wire=wire, hosts=hosts, form=form)
    wrong = [what for one in records for what in one["wrong"]]
    for what in wrong[:SHOWN]:
        print("wrong:", what)
    if wrong or [one["group"] for one in records] != list(groups):
        raise click.ClickException(f"{len(wrong)} results differ, or a group is missing")
