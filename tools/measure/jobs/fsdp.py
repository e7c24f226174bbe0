# SPDX-License-Identifier: Apache-2.0
"""tools/jobs fsdp: a sharded model loses a rank, and torchrun restarts it from its checkpoint."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any, Optional

import click

from tools.hosts.lab import Lab
from tools.hosts.ranks import wait_until
from tools.hosts.torch_job import TorchRank, end_well, sites, torch_job
from tools.measure.jobs import hosts as lab_hosts
from tools.measure.options import json_option
from tools.measure.tables import markdown

STEP_S = 120.0  # for the next step, with the start of the workers on a busy machine
Record = dict[str, Any]


def kill_at(agent: TorchRank, step: int) -> None:
    """Kills the worker of an agent, which waits after this step."""

    def taken() -> Optional[Record]:
        return next((one for one in lab_hosts.told(agent) if one["step"] == step), None)

    record = wait_until(taken, STEP_S, f"no step {step}", [agent])
    os.kill(record["pid"], signal.SIGKILL)


def train(lab: Lab, folder: Path, steps: int, kill_step: int) -> list[Record]:
    """Runs the job to its end. Returns the records of the last host's worker. kill_step: kill this
    worker after that step, if it is not 0."""
    hosts = len(lab.hosts)
    places = sites(folder, lab, hosts)
    saved = folder / "checkpoints"
    saved.mkdir()
    addresses = ",".join(host.address for host in lab.hosts)
    args = (addresses, lab_hosts.PROGRAMS / "sharded.py", saved, steps, kill_step)
    with torch_job(places, lab_hosts.PROGRAMS / "elastic.py", *args) as agents:
        if kill_step:
            kill_at(agents[-1], kill_step)
        end_well(agents, lab_hosts.JOB_LIMIT_S)
        return lab_hosts.told(agents[-1])


def problem(unbroken: list[Record], broken: list[Record], steps: int) -> Optional[str]:
    """What is wrong with the restarted job; None if nothing is."""
    again = [one for one in broken if one["attempt"] > 0]
    if not again:
        return "the job was not restarted"
    if again[0]["step"] == 1:
        return "the restarted job did not begin at its checkpoint"
    ends = [records[-1] for records in (unbroken, broken)]
    if any(end["step"] != steps for end in ends):
        return f"a job ended before step {steps}"
    if ends[0]["loss"] != ends[1]["loss"]:
        return f"the last losses differ: {ends[0]['loss']} and {ends[1]['loss']}"
    return None


def report(unbroken: list[Record], broken: list[Record]) -> str:
    again = [one["step"] for one in broken if one["attempt"] > 0]
    rows = [
        ["unbroken", "–", f"{unbroken[-1]['loss']:.6f}"],
        ["a rank killed", str(again[0]) if again else "–", f"{broken[-1]['loss']:.6f}"],
    ]
    return markdown(["job", "first step after the restart", "last loss"], rows, right=(1, 2))


@click.command("fsdp")
@lab_hosts.wire_option
@lab_hosts.hosts_option()
@click.option("--steps", default=12, show_default=True, type=click.IntRange(4))
@json_option("the records")
def fsdp(wire: str, hosts: int, steps: int, json_path: Optional[Path]) -> None:
    """Train a model that FSDP shards over the ranks, twice; kill a rank of the second job.

    torchrun's elastic agent restarts it from its checkpoint. The exit status is 1 unless the last
    loss has the same bits as that of the unbroken job.
    """
    lab_hosts.require("torch")
    found: list[list[Record]] = []
    with lab_hosts.failures_told(), Lab(hosts=hosts, wire=wire) as lab:
        for kill_step in (0, steps // 2):
            with tempfile.TemporaryDirectory() as folder:
                found.append(train(lab, Path(folder), steps, kill_step))
    print(f"FSDP over HARP, {hosts} hosts, {lab.wire.name}, {steps} steps\n")
    unbroken, broken = found
    print(report(unbroken, broken))
    records = [{"job": "unbroken", "steps": unbroken}, {"job": "killed", "steps": broken}]
    lab_hosts.save(json_path, records, wire=lab.wire.name, hosts=hosts, steps=steps)
    wrong = problem(unbroken, broken, steps)
    if wrong:
        raise click.ClickException(wrong)
