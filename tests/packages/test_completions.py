# SPDX-License-Identifier: Apache-2.0
"""The files that complete words of the commands in a shell."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/packages"))

import completions  # noqa: E402

# What each shell does for a word that is not finished. $1: the file; then the words.
SHELLS = {
    "bash": """
        . "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _${1//-/_}_completion "$1"
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "zsh": """
        compdef() { :; }
        compadd() { for word in ${(P)6}; do print -r -- $word; done; }
        _describe() { for word in ${(P)3}; do print -r -- ${word%%:*}; done; }
        file=$1; shift
        words=("$@"); CURRENT=$#
        . $file
    """,
    "fish": """
        source $argv[1]
        complete --do-complete="$argv[2..-1]" | string replace --regex '\\t.*' ''
    """,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with the commands of this checkout."""
    folder = tmp_path_factory.mktemp("bin")
    for name, function in (("harp", "main"), ("harp-setup", "setup_main")):
        code = f"from harp.cli.main import {function}; {function}()"
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -c {shlex.quote(code)} "$@"\n')
        program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["harp", "set"], {"setup"}),
        (["harp", "perf", "--verified"], {"--verified", "--verified-iterations"}),
        (["harp-setup", "und"], {"undo"}),
    ],
)
@pytest.mark.parametrize("shell", SHELLS)
def test_shell_completes_words(
    shell: str, words: list[str], wanted: set[str], path: str, tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is missing")
    place = {"bash": "bash-completion/completions/{}", "zsh": "zsh/site-functions/_{}",
             "fish": "fish/vendor_completions.d/{}.fish"}[shell]  # fmt: skip
    file = tmp_path / "file"
    file.write_text(dict(completions.files())[place.format(words[0])])
    first = ["--"] if shell == "fish" else [shell]
    done = subprocess.run(
        [shell, "-c", SHELLS[shell], *first, file, *words],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert set(done.stdout.split()) == wanted, done.stdout + done.stderr
