# SPDX-License-Identifier: Apache-2.0
"""C files have the one format (test_lint.py checks Python's), and no file is too long to be read in
one sitting."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("dpdk_glue", "harp", "plugin", "tests", "tools")
MOST_LINES = 600

formatter = pytest.mark.skipif(
    importlib.util.find_spec("clang_format") is None and shutil.which("clang-format") is None,
    reason="no clang-format here",
)


def sources(*suffixes: str) -> list[Path]:
    """The project's own files of these kinds."""
    found = (path for top in FOLDERS for path in sorted((ROOT / top).rglob("*")))
    return [path for path in found if path.suffix in suffixes and "__pycache__" not in path.parts]


def unformatted(paths: Iterable[Path]) -> str:
    """What clang-format would change, in its words; nothing if all is well."""
    done = subprocess.run(
        ["clang-format", "--style", f"file:{ROOT / '.clang-format'}", "--dry-run", "--Werror"]
        + [str(path) for path in paths],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr or "clang-format failed"


def too_long(paths: Iterable[Path]) -> list[str]:
    """Files above MOST_LINES lines, with their length."""
    lengths = ((path, len(path.read_bytes().splitlines())) for path in paths)
    return [f"{path}: {lines} lines" for path, lines in lengths if lines > MOST_LINES]


@formatter
def test_c_is_formatted() -> None:
    found = unformatted(sources(".c", ".h"))
    assert not found, found[:4000]


@formatter
def test_unformatted_c_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.c"
    path.write_text("int f(void) {\n    return 1;\n}\n")
    assert "x.c:1" in unformatted([path])


def test_no_file_is_too_long() -> None:
    found = too_long(sources(".c", ".h", ".py", ".pyx"))
    assert not found, "\n".join(found)


def test_a_long_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.c"
    path.write_text("\n" * (MOST_LINES + 1))
    assert too_long([path]) == [f"{path}: {MOST_LINES + 1} lines"]
