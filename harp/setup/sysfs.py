# SPDX-License-Identifier: Apache-2.0
"""Small files in which the kernel tells and is told things: /sys and /proc."""

from __future__ import annotations

from pathlib import Path

# Everything is looked for below it; tests put a tree of their own here.
ROOT = Path("/")


def at(path: str) -> Path:
    """A path such as "sys/class/net", below the root."""
    return ROOT / path


def text(path: Path) -> str:
    """What the file says, stripped; "" if it is not there or says nothing now (as the
    carrier of an interface that is down)."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def number(path: Path, otherwise: int = 0) -> int:
    """The file's number, decimal or after 0x hexadecimal; `otherwise` if it has none."""
    try:
        return int(text(path), 0)
    except ValueError:
        return otherwise


def names(folder: Path) -> list[str]:
    """What lies in the folder, sorted; nothing if it is not there."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def link(path: Path) -> str:
    """The last part of where a link points; "" if there is none."""
    return path.resolve().name if path.exists() else ""


def boot() -> str:
    """The name of this boot of the machine: what only the kernel remembered before
    another one is gone."""
    return text(at("proc/sys/kernel/random/boot_id"))
