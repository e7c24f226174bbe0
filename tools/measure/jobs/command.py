# SPDX-License-Identifier: Apache-2.0
"""The command tools/jobs: training jobs over HARP beside Gloo, on hosts of a lab."""

from __future__ import annotations

import click

from tools.measure.jobs.all_reduce import all_reduce
from tools.measure.jobs.compression import compression
from tools.measure.jobs.conformance import conformance
from tools.measure.jobs.ddp import ddp
from tools.measure.jobs.faults import faults
from tools.measure.jobs.fsdp import fsdp
from tools.measure.jobs.recommender import recommender
from tools.measure.jobs.shared_memory import shared_memory
from tools.measure.jobs.synthetic import synthetic
from tools.measure.jobs.torch_tests import torch_tests

JOBS = (
    all_reduce,
    shared_memory,
    ddp,
    fsdp,
    synthetic,
    compression,
    recommender,
    faults,
    conformance,
    torch_tests,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Run jobs of torch.distributed over HARP and over Gloo."""


for job in JOBS:
    main.add_command(job)

if __name__ == "__main__":
    main(prog_name="tools/jobs")
