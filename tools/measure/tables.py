# SPDX-License-Identifier: Apache-2.0
"""Tables in Markdown that also read well as plain text."""

from __future__ import annotations

from typing import List, Sequence


def size_text(size: int) -> str:
    """A size in bytes as text: 8 B, 64 KiB, 1 MiB."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} B"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    """A table; `right` are the right-aligned columns."""
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
