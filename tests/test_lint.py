# SPDX-License-Identifier: Apache-2.0
"""Static analysis: ruff and mypy for the Python, gcc's analyzer and stricter warnings for the C.

What a file gave is remembered by its text and its headers', so that only what changed is looked
at again."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("HARP_BUILD_DIR") or ROOT / "build").resolve()
AT_ONCE = 2

# Beyond those that every build has (meson.build). Left out: what asks for a cast without a
# gain (conversion, cast-align).
STRICT = (
    "-Wformat=2", "-Wundef", "-Wlogical-op", "-Wduplicated-cond", "-Wduplicated-branches",
    "-Wnull-dereference", "-Wdouble-promotion", "-Wcast-qual", "-Walloca",
    "-Wjump-misses-init", "-Wtrampolines", "-Wimplicit-fallthrough=5", "-Wredundant-decls",
)  # fmt: skip
ANALYZED = (
    "dpdk_glue",
    "harp/bench",
    "harp/collectives",
    "harp/engine",
    "harp/nc",
    "harp/stack",
    "plugin",
)

pytestmark = pytest.mark.timeout(600)


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"no {module} here")


@dataclass(frozen=True)
class Unit:
    """A C file of ours, and how it is compiled: the compiler's arguments without the output."""

    path: Path
    folder: Path
    args: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.args, *options], cwd=self.folder, capture_output=True,
                              text=True, timeout=400, check=False)  # fmt: skip


def units() -> list[Unit]:
    """What the build compiles, each file once; not what is generated."""
    found: dict[Path, Unit] = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        folder = Path(entry["directory"])
        path = (folder / entry["file"]).resolve()
        if path.suffix != ".c" or BUILD in path.parents or ROOT not in path.parents:
            continue
        args = shlex.split(entry["command"])
        at = args.index("-o")
        kept = [word for word in args[:at] + args[at + 2 :]
                if word not in ("-c", "-MD") and not word.endswith(".o.d")]  # fmt: skip
        while "-MQ" in kept:
            del kept[kept.index("-MQ") : kept.index("-MQ") + 2]
        if "-MF" in kept:
            kept.remove("-MF")
        found[path] = Unit(path, folder, tuple(kept))
    return sorted(found.values(), key=lambda unit: unit.path)


def options_for(unit: Unit) -> Sequence[str]:
    analyzed = unit.name.startswith(ANALYZED)
    return (*STRICT, "-fanalyzer") if analyzed else STRICT


def complaints(unit: Unit, options: Sequence[str], memory: Path) -> str:
    """What the compiler says of a file; "" if nothing."""
    text = unit.run("-E", "-P").stdout
    key = hashlib.sha256("\0".join((text, *unit.args, *options)).encode()).hexdigest()
    remembered = memory / key
    if remembered.is_file():
        return ""
    done = unit.run("-c", "-o", os.devnull, "-fdiagnostics-color=never", *options)
    if done.returncode == 0 and not done.stderr:
        memory.mkdir(parents=True, exist_ok=True)
        remembered.touch()
    return done.stderr or ("" if done.returncode == 0 else "it does not compile")


def is_gcc() -> bool:
    found = units()
    version = found[0].run("--version").stdout if found else ""
    return "Free Software Foundation" in version and "sanitize" not in " ".join(found[0].args)


@pytest.mark.slow
def test_c_sources_have_no_warnings() -> None:
    if not is_gcc():
        pytest.skip("the build in HARP_BUILD_DIR is not a plain one by gcc")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = pool.map(lambda unit: complaints(unit, options_for(unit), BUILD / "lint"), units())
    found = [text for text in said if text]
    assert not found, "\n".join(found)


WRONG = {
    "a pointer that may be null": (
        "#include <stdlib.h>\nint *f(void) { int *p = malloc(4); *p = 1; return p; }\n",
        "-Wanalyzer-possible-null-dereference"),
    "freed twice": (
        "#include <stdlib.h>\nvoid f(char *p, int n) { free(p); if (n) free(p); }\n",
        "-Wanalyzer-double-free"),
    "a constant written to": ("char *f(const char *s) { return (char *)s; }\n", "-Wcast-qual"),
    "the same twice": ("int f(int a) { if (a) return 1; else if (a) return 2; return 3; }\n",
                       "-Wduplicated-cond"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_planted_c_fault_is_found(tmp_path: Path, fault: str) -> None:
    code, warning = WRONG[fault]
    path = tmp_path / "wrong.c"
    path.write_text(code)
    unit = Unit(path, tmp_path, ("gcc", "-O2", "-Wall", str(path)))
    for _ in range(2):  # what is wrong is not remembered as right
        assert warning in complaints(unit, (*STRICT, "-fanalyzer"), tmp_path / "memory")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True,
                          text=True, timeout=400, check=False)  # fmt: skip


@needs("ruff")
def test_ruff_finds_no_fault() -> None:
    done = python("ruff", "check", "--no-cache", "harp", "tests", "tools")
    assert done.returncode == 0, done.stdout


@needs("ruff")
def test_python_is_formatted() -> None:
    done = python("ruff", "format", "--check", "--no-cache", "harp", "tests", "tools")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # tools/lint runs it, too
@needs("mypy")
def test_mypy_finds_no_fault() -> None:
    done = python("mypy", "--cache-dir", str(BUILD / "mypy"), "harp", "tools")
    assert done.returncode == 0, done.stdout


@needs("mypy")
def test_planted_type_fault_is_found(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text('def f(a: int) -> str:\n    return a\n\n\nf("x")\n')
    done = python("mypy", "--cache-dir", str(tmp_path / "cache"), str(path))
    assert done.returncode == 1 and done.stdout.count("error:") == 2


@needs("ruff")
def test_planted_unused_name_is_found(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("import os\n")
    done = python("ruff", "check", "--no-cache", "--config", "pyproject.toml", str(path))
    assert done.returncode == 1 and "F401" in done.stdout
