# SPDX-License-Identifier: Apache-2.0
"""Access to the kernel's files in /sys and /proc."""

from __future__ import annotations

from pathlib import Path

# The root of all paths; tests replace it by a tree of their own.
ROOT = Path("/")


def at(path: str) -> Path:
    """A path such as "sys/class/net", below the root."""
    return ROOT / path


def text(path: Path) -> str:
    """The file's text, stripped; "" if the file is missing or cannot be read now (such as the
    carrier of an interface that is down)."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def number(path: Path, otherwise: int = 0) -> int:
    """The file's number, decimal or hexadecimal with 0x; `otherwise` if it has none."""
    try:
        return int(text(path), 0)
    except ValueError:
        return otherwise


def names(folder: Path) -> list[str]:
    """The names in the folder, sorted; empty if there is no folder."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def link(path: Path) -> str:
    """The last part of the link's target; "" without a link."""
    return path.resolve().name if path.exists() else ""


def boot() -> str:
    """The id of this boot. State that only the kernel held is lost when it changes."""
    return text(at("proc/sys/kernel/random/boot_id"))
