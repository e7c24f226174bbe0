# SPDX-License-Identifier: Apache-2.0
"""What a measurement was to reach, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import click


@dataclass(frozen=True)
class Verdict:
    """What was to be reached, and what was, in words."""

    text: str
    met: bool

    def __str__(self) -> str:
        return f"{'met   ' if self.met else 'missed'}  {self.text}"


def show_verdicts(verdicts: Sequence[Verdict]) -> None:
    """A line for each on standard output."""
    for verdict in verdicts:
        click.echo(verdict)
