# SPDX-License-Identifier: Apache-2.0
"""Makes a plan's changes, and takes all of them back."""

from __future__ import annotations

from collections.abc import Iterator

from harp.setup.dpdk import Choice
from harp.setup.journal import Journal, only_one
from harp.setup.plan import conf_dir, plan
from harp.setup.request import Request
from harp.setup.steps import Step


def planned(requests: list[Request], choice: Choice) -> list[Step]:
    """What apply would do. Raises as apply."""
    return plan(requests, choice, Journal(conf_dir()).steps)


def apply(requests: list[Request], choice: Choice) -> list[Step]:
    """Makes what is missing; the steps that were made. After a failure or a crash
    in the middle, apply goes on and undo goes back. Raises PlanError, StepError,
    HostError or OSError."""
    folders = [step for step in planned(requests, choice) if step.is_home]
    for step in folders:
        step.do()  # the lock and the journal need a place
    with only_one(conf_dir()):
        journal = Journal(conf_dir())
        steps = folders + plan(requests, choice, journal.steps)
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
        journal.discard()
