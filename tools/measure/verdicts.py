# SPDX-License-Identifier: Apache-2.0
"""The targets of a measurement, and whether it met them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import click


@dataclass(frozen=True)
class Verdict:
    """A target and the result as text, and whether it was met."""

    text: str
    met: bool

    def __str__(self) -> str:
        return f"{'met   ' if self.met else 'missed'}  {self.text}"


def show_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Prints a line for each on standard output."""
    for verdict in verdicts:
        click.echo(verdict)
