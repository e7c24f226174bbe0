# SPDX-License-Identifier: Apache-2.0
"""The journal of the steps made on this host. Undo reads it. Every step is on disk before it is
made, so undo works also after a crash."""

from __future__ import annotations

import json
from pathlib import Path

from harp.setup.kinds import from_row
from harp.setup.steps import RefusedError, Step, StepError, remove_file, write_file

SCHEMA = "harp.setup/1"
NAME = "setup-journal.json"


class Journal:
    """The steps in the order of their beginning. The file `path` need not exist. `complete`: no
    set-up or undo runs, and none was interrupted; journals of older releases do not tell."""

    def __init__(self, folder: Path) -> None:
        """Reads the folder's journal. Raises StepError if it is damaged."""
        self.path = folder / NAME
        self.steps: list[Step] = []
        self.complete = True
        self._begun: list[bool] = []
        try:
            document = json.loads(self.path.read_text())
            if document["schema"] != SCHEMA:
                raise StepError(
                    f"{self.path}: its schema is {document['schema']!r}, but this release reads "
                    f"{SCHEMA!r}; use the release that wrote the file"
                )
            rows = [(from_row(row["step"]), row["state"] == "begun") for row in document["steps"]]
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as wrong:
            raise StepError(
                f"{self.path} is damaged ({wrong}); undo its steps by hand, then remove it"
            ) from wrong
        self.complete = document.get("complete", True) is True
        self.steps = [step for step, _ in rows]
        self._begun = [begun for _, begun in rows]

    def _save(self) -> None:
        rows = [
            {"state": "begun" if begun else "done", "step": step.row()}
            for step, begun in zip(self.steps, self._begun)
        ]
        document = {"schema": SCHEMA, "complete": self.complete, "steps": rows}
        write_file(self.path, json.dumps(document, indent=1) + "\n")

    def discard(self) -> None:
        """Removes the file, and a temporary file left by a crash."""
        remove_file(self.path)

    def entries(self) -> list[tuple[Step, str]]:
        """Each step with its state: "done", "begun" (interrupted by a crash), "missing" (undone by
        a reboot or by hand), "edited" (a file changed by hand), or "removed" (a file that was there
        before set-up, and was removed by hand)."""

        def state(step: Step, begun: bool) -> str:
            if step.in_place():
                return "done"
            return "begun" if begun else step.strayed()

        return [(step, state(step, begun)) for step, begun in zip(self.steps, self._begun)]

    def take_as_made(self, steps: list[Step]) -> None:
        """Records the steps that make the journal's own folders."""
        self.complete = False
        self.steps += steps
        self._begun += [False] * len(steps)
        self._save()

    def _find(self, step: Step) -> int:
        for i, known in enumerate(self.steps):
            if (known.kind, known.target) == (step.kind, step.target):
                return i
        return -1

    def carry_out(self, step: Step) -> None:
        """Records the step, makes it, and records that it is done. The step replaces an earlier
        one on the same target. Raises StepError, HostError or OSError."""
        before = (self.steps[:], self._begun[:], self.complete)
        self.complete = False
        i = self._find(step)
        if i < 0:
            i = len(self.steps)
            self.steps.append(step)
            self._begun.append(True)
        else:
            step.follow(self.steps[i])
            self.steps[i] = step
            self._begun[i] = True
        self._save()
        try:
            step.do()
        except RefusedError:  # such as a file that a job uses: the earlier step still holds
            self.steps, self._begun, self.complete = before
            self._save()
            raise
        self._begun[i] = False
        self._save()

    def undo(self, step: Step) -> str:
        """Undoes a step of the journal, and forgets it. Returns a line that says what it did, ""
        for nothing. Raises StepError, HostError or OSError."""
        first = self.complete
        if first:
            self.complete = False
            self._save()
        try:
            said = step.undo()
        except Exception:
            if first:  # such as a file that a job uses: all steps are left
                self.finish()
            raise
        i = self._find(step)
        del self.steps[i], self._begun[i]
        self._save()
        return said

    def finish(self) -> None:
        """Records that the set-up is complete."""
        if not self.complete:
            self.complete = True
            self._save()
