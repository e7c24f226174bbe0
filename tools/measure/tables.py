# SPDX-License-Identifier: Apache-2.0
"""Tables for people: Markdown that reads well as plain text too."""

from __future__ import annotations

from typing import List, Sequence


def size_text(size: int) -> str:
    """8, 64 KiB, 1 MiB: how people name sizes in bytes."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} B"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    """A table; `right` are the columns of numbers."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths))
        ]
        return f"| {' | '.join(padded)} |"

    rules = [
        "-" * (width - 1) + ":" if i in right else "-" * width for i, width in enumerate(widths)
    ]
    lines: List[str] = [line(header), line(rules), *(line(row) for row in rows)]
    return "\n".join(lines)
