# SPDX-License-Identifier: Apache-2.0
"""tools/jobs synthetic: a program for Horovod, by LightCC's launch line, on growing numbers of
hosts."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

import click

from tools.hosts.lab import Lab, LabError
from tools.hosts.mpi_job import mpirun
from tools.measure.jobs import hosts as lab_hosts
from tools.measure.options import json_option
from tools.measure.stats import ratios, summarize
from tools.measure.tables import markdown

COUNTS = (1, 2, 4)
LIGHT = {"LIGHT_2D_ALLREDUCE": 1, "LIGHT_INTRA_SIZE": 2}
TOTAL = re.compile(r"^Total img/sec on (\d+) CPU\(s\): ([\d.]+) ", re.MULTILINE)


def images_per_second(output: str, ranks: int) -> float:
    """The figure that the program prints. Raises LabError if it is missing, or of another job."""
    found = TOTAL.search(output)
    if not found or int(found[1]) != ranks:
        raise LabError(f"no images per second of {ranks} ranks in: {output}")
    return float(found[2])


def report(rates: Mapping[int, Sequence[float]]) -> str:
    """A table: images per second of each number of hosts, and by how much more than on one."""
    rows = [
        [
            str(count),
            summarize(found).text(1),
            ratios(found, rates[1]).text() if count > 1 else "1",
        ]
        for count, found in rates.items()
    ]
    return markdown(["hosts", "images/s", "scaling"], rows, right=(0, 1, 2))


@click.command("synthetic")
@lab_hosts.wire_option
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1),
              help="Times that each number of hosts runs, in turns.")  # fmt: skip
@click.option("--batch-size", default=4, show_default=True, type=click.IntRange(1),
              help="Images of a rank's step.")  # fmt: skip
@click.option("--iterations", default=5, show_default=True, type=click.IntRange(1),
              help="Samples of each run.")  # fmt: skip
@json_option("the images per second")
def synthetic(
    wire: str, rounds: int, batch_size: int, iterations: int, json_path: Optional[Path]
) -> None:
    """Print images per second on 1, 2 and 4 hosts of a program for Horovod's interface.

    Open MPI 4's mpirun starts it: mpirun.openmpi ... -x LIGHT_2D_ALLREDUCE=1 ... The hosts share
    the cores of this machine, so that more ranks than cores do not scale.
    """
    lab_hosts.require("torch")
    program = [lab_hosts.PROGRAMS / "synthetic.py", "--batch-size", batch_size,
               "--num-iters", iterations]  # fmt: skip
    rates: dict[int, list[float]] = {count: [] for count in COUNTS}
    with lab_hosts.failures_told(), Lab(hosts=max(COUNTS), wire=wire) as lab:
        for _ in range(rounds):
            for count, found in rates.items():
                with tempfile.TemporaryDirectory() as folder:
                    limit = lab_hosts.JOB_LIMIT_S
                    output = mpirun(lab, Path(folder), count, program, limit, **LIGHT)
                found.append(images_per_second(output, count))
    variables = " ".join(f"-x {name}={value}" for name, value in LIGHT.items())
    print(f"mpirun ... {variables} ... {lab.wire.name}, {os.cpu_count()} cores: median (range)\n")
    print(report(rates))
    records = [{"hosts": count, "images_s": found} for count, found in rates.items()]
    lab_hosts.save(json_path, records, wire=lab.wire.name, batch_size=batch_size)
