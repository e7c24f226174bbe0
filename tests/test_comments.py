# SPDX-License-Identifier: Apache-2.0
"""Comments and texts in the sources name files of the project by paths that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("dpdk_glue", "harp", "plugin", "tools")
KINDS = (".c", ".def", ".h", ".py", ".pyx", ".build", "")
PATH = re.compile(
    r"(?<![\w./-])(?:dpdk_glue|docs|harp|plugin|tests|tools)/[\w./-]+\.(?:c|def|h|md|py|pyx|yaml)\b"
)


def sources() -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in KINDS and "__pycache__" not in path.parts:
                yield path


def missing(text: str) -> list[str]:
    return [path for path in PATH.findall(text) if not (ROOT / path).exists()]


def test_named_files_are_there() -> None:
    found = [f"{source.relative_to(ROOT)}: there is no {path}"
             for source in sources() for path in missing(source.read_text())]  # fmt: skip
    assert not found, "\n".join(found)


def test_a_missing_file_is_seen() -> None:
    text = "/* As in harp/stack/none.c, and not in harp/stack/stack.c. */"
    assert missing(text) == ["harp/stack/none.c"]
