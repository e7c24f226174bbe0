# SPDX-License-Identifier: Apache-2.0
"""Makes a plan's changes, and undoes all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from harp.setup import home
from harp.setup.dpdk import Choice
from harp.setup.host import HostError
from harp.setup.journal import Journal
from harp.setup.plan import check_holders, conf_dir, existing_files, files_after, notes, plan
from harp.setup.request import Request
from harp.setup.stale import stale
from harp.setup.steps import Step, StepError


@dataclass(frozen=True)
class Plan:
    """What apply would do. `undo`: the steps of earlier choices that no file will need. `notes`:
    lines about what set-up leaves as it is."""

    steps: list[Step] = field(default_factory=list)
    undo: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.steps or self.undo)


@dataclass(frozen=True)
class Done:
    """What apply has done. `undone` has a line for each step that it undid, and `failed` one for
    each step that it could not undo."""

    steps: list[Step]
    undone: list[str]
    failed: list[str]


def planned(requests: list[Request], choice: Choice) -> Plan:
    """What apply would do. Raises the same errors."""
    journal = Journal(conf_dir()).steps
    steps = plan(requests, choice, journal)
    check_holders(requests)
    unneeded = stale(journal, files_after(steps, conf_dir()))
    undo = [step for step in unneeded if not step.is_undone()]
    return Plan(steps, undo, notes(requests))


def _undo_stale(journal: Journal) -> tuple[list[str], list[str]]:
    """Undoes the steps that no file needs. A step that cannot be undone stays in the journal, for
    the next set-up. Returns the lines of Done: `undone` and `failed`."""
    undone, failed = [], []
    for step in stale(journal.steps, existing_files(conf_dir())):
        try:
            undone.append(journal.undo(step))
        except (StepError, HostError, OSError) as failure:
            failed.append(
                f"no file needs {step.kind} {step.target} any more, but it is not undone: {failure}"
            )
    return [line for line in undone if line], failed


def apply(requests: list[Request], choice: Choice) -> Done:
    """Makes the missing steps, and undoes those of earlier choices that no file needs any more.
    Another apply continues after a failure or a crash in the middle, and undo reverts. Raises
    PlanError, StepError, HostError or OSError."""
    planned(requests, choice)  # a refused request must leave no folder behind
    with home.opened(conf_dir()) as made:
        journal = Journal(conf_dir())
        steps = plan(requests, choice, journal.steps)
        for step in steps:
            journal.carry_out(step)
        undone, failed = _undo_stale(journal)
        journal.finish()
    return Done(made + steps, undone, failed)


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
