# SPDX-License-Identifier: Apache-2.0
"""Makes a plan's changes, and undoes all of them."""

from __future__ import annotations

from collections.abc import Iterator

from harp.setup import home
from harp.setup.dpdk import Choice
from harp.setup.journal import Journal
from harp.setup.plan import check_holders, conf_dir, existing_files, plan
from harp.setup.request import Request
from harp.setup.stale import stale
from harp.setup.steps import Step


def planned(requests: list[Request], choice: Choice) -> list[Step]:
    """The steps that apply would make. Raises the same errors."""
    steps = plan(requests, choice, Journal(conf_dir()).steps)
    check_holders(requests)
    return steps


def apply(requests: list[Request], choice: Choice) -> tuple[list[Step], list[str]]:
    """Makes the missing steps, and undoes those of earlier choices that no file needs any more.
    Returns the steps that it made, and a line for each one that it undid. Another apply continues
    after a failure or a crash in the middle, and undo reverts. Raises PlanError, StepError,
    HostError or OSError."""
    planned(requests, choice)  # a refused request must leave no folder behind
    with home.opened(conf_dir()) as made:
        journal = Journal(conf_dir())
        steps = plan(requests, choice, journal.steps)
        for step in steps:
            journal.carry_out(step)
        undone = [journal.undo(step) for step in stale(journal.steps, existing_files(conf_dir()))]
        journal.finish()
    return made + steps, [line for line in undone if line]


def undo() -> Iterator[str]:
    """Undoes every step, the last one first, and yields a line for each. Raises the same errors as
    apply; the journal then keeps the steps that are left."""
    conf = conf_dir()
    with home.locked(conf):
        yield from home.sweep(conf)
        if not conf.is_dir():
            return
        journal = Journal(conf)
        while not all(home.is_home(step, conf) for step in journal.steps):
            said = journal.undo(journal.steps[-1])
            if said:
                yield said
        yield from home.take_away(journal, conf)
