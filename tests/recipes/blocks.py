# SPDX-License-Identifier: Apache-2.0
"""The blocks of the recipes that a shell runs, and the comments that say where."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs/recipes"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))

_FENCE = re.compile(r"^ *(?:<!-- ([^\n]*) -->\n *)?```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PLACES = {
    "runs on gpu1": ("gpu1",),
    "runs on gpu2": ("gpu2",),
    "runs on gpu1 and gpu2": ("gpu1", "gpu2"),
    "runs on a Slurm cluster": ("Slurm",),
}


@dataclass(frozen=True)
class Block:
    """`places` are the hosts that run it, or "Slurm"; none if no test runs it."""

    page: str
    number: int
    text: str
    places: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.page} {self.number}"


def parse(page: str, text: str) -> list[Block]:
    """Raises ValueError for a block whose comment does not say where it runs."""
    found = []
    for number, (comment, body) in enumerate(_FENCE.findall(text), 1):
        if not re.fullmatch(r"not run: \S.*", comment) and comment not in _PLACES:
            raise ValueError(f"{page}: block {number} does not say where it runs: {comment!r}")
        found.append(Block(page, number, body, _PLACES.get(comment, ())))
    return found


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in parse(page, (FOLDER / page).read_text())]
