# SPDX-License-Identifier: Apache-2.0
"""The blocks of documents that a shell runs, and the comments that say where."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "docs/recipes"

_FENCE = re.compile(r"^ *(?:<!-- ([^\n]*) -->\n *)?```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PLACES = {
    "runs on gpu1": ("gpu1",),
    "runs on gpu2": ("gpu2",),
    "runs on gpu1 and gpu2": ("gpu1", "gpu2"),
    "runs on a Slurm cluster": ("Slurm",),
    "runs on gpu1 and gpu2, a line on each": ("a line on each",),
    "runs on a new host": ("new host",),
    "runs on a host with a job": ("job",),
    "runs on a host with an agent": ("agent",),
    "runs on a host with a trace": ("trace",),
    "runs on a host with Prometheus and Grafana": ("monitoring",),
    "runs in a clone on a new host": ("clone",),
    "runs in a checkout": ("checkout",),
    "runs in a lab": ("lab",),
}
_MANNERS = ("until Ctrl-C", "and fails", "on request")


@dataclass(frozen=True)
class Block:
    """`places` are the hosts that run it, or the name of another place; none if no test runs it.
    `manners`: some of _MANNERS. Without them, a block ends by itself, with status 0."""

    page: str
    number: int
    text: str
    places: tuple[str, ...]
    manners: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        return f"{self.page} {self.number}"


def parse(page: str, text: str) -> list[Block]:
    """Raises ValueError for a block whose comment does not say where it runs."""
    found = []
    for number, (comment, body) in enumerate(_FENCE.findall(text), 1):
        place, manners = comment, set()
        while place.rpartition(", ")[2] in _MANNERS:
            place, _, manner = place.rpartition(", ")
            manners.add(manner)
        if not re.fullmatch(r"not run: \S.*", comment) and place not in _PLACES:
            raise ValueError(f"{page}: block {number} does not say where it runs: {comment!r}")
        found.append(Block(page, number, body, _PLACES.get(place, ()), frozenset(manners)))
    return found


def of_recipes() -> list[Block]:
    return [
        block
        for path in sorted(RECIPES.glob("*.md"))
        for block in parse(path.name, path.read_text())
    ]


def of_documents() -> list[Block]:
    """Of all other documents. Their pages have the path in the checkout."""
    paths = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    return [
        block
        for path in sorted(paths)
        if path.parent != RECIPES
        for block in parse(str(path.relative_to(ROOT)), path.read_text())
    ]
