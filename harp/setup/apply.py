# SPDX-License-Identifier: Apache-2.0
"""Makes a plan's changes, and takes all of them back."""

from __future__ import annotations

from collections.abc import Iterator

from harp.setup import home
from harp.setup.dpdk import Choice
from harp.setup.journal import Journal
from harp.setup.plan import check_holders, conf_dir, plan
from harp.setup.request import Request
from harp.setup.steps import Step


def planned(requests: list[Request], choice: Choice) -> list[Step]:
    """What apply would do. Raises as apply."""
    steps = plan(requests, choice, Journal(conf_dir()).steps)
    check_holders(requests)
    return steps


def apply(requests: list[Request], choice: Choice) -> list[Step]:
    """Makes what is missing; the steps that were made. After a failure or a crash
    in the middle, apply goes on and undo goes back. Raises PlanError, StepError,
    HostError or OSError."""
    planned(requests, choice)  # what is refused leaves nothing behind
    with home.opened(conf_dir()) as made:
        journal = Journal(conf_dir())
        steps = plan(requests, choice, journal.steps)
        for step in steps:
            journal.carry_out(step)
    return made + steps


def undo() -> Iterator[str]:
    """Takes back everything, the last step first, and yields what was done. Raises
    as apply; what is left then is still in the journal."""
    conf = conf_dir()
    with home.locked(conf):
        yield from home.sweep(conf)
        if not conf.is_dir():
            return
        journal = Journal(conf)
        while not all(home.is_home(step, conf) for step in journal.steps):
            said = journal.undo_last()
            if said:
                yield said
        yield from home.take_away(journal, conf)
