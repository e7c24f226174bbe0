# SPDX-License-Identifier: Apache-2.0
"""Makes a plan's changes, and takes all of them back."""

from __future__ import annotations

from collections.abc import Iterator

from harp.setup.journal import Journal, only_one
from harp.setup.plan import Request, conf_dir, plan
from harp.setup.steps import Step


def apply(requests: list[Request]) -> list[Step]:
    """Makes what is missing; the steps that were made. After a failure or a crash
    in the middle, apply goes on and undo goes back. Raises PlanError, StepError,
    HostError or OSError."""
    folders = [step for step in plan(requests) if step.is_home]
    for step in folders:
        step.do()  # the lock and the journal need a place
    with only_one(conf_dir()):
        journal = Journal(conf_dir())
        steps = folders + plan(requests)
        for step in steps:
            journal.carry_out(step)
    return steps


def undo() -> Iterator[str]:
    """Takes back everything, the last step first, and yields what was done. Raises
    as apply; what is left then is still in the journal."""
    if not conf_dir().is_dir():
        return
    with only_one(conf_dir()):
        journal = Journal(conf_dir())
        while journal.steps:
            said = journal.undo_last()
            if said:
                yield said
