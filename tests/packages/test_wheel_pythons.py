# SPDX-License-Identifier: Apache-2.0
"""The wheel of ./tools/package wheel works on every Python that it is for.

    ./tools/package wheel && HARP_TEST_FULL=1 pytest tests/packages/test_wheel_pythons.py

Each Python of this machine gets an environment of its own with the wheel: those on the PATH, those
of the system, and those of pyenv. pip takes click from the package registry.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from made_packages import newest

FULL = os.environ.get("HARP_TEST_FULL")
IMPORT_ALL = Path(__file__).resolve().parents[1] / "import_all.py"
OLDEST, NEWEST = 9, 14  # minor versions of Python 3 that a run names, found or not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FULL, reason="needs the wheel of ./tools/package; HARP_TEST_FULL=1"),
    pytest.mark.timeout(900),
]


@lru_cache(maxsize=None)
def pythons() -> dict[int, Path]:
    """The first interpreter of each minor version that can make an environment with pip."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders = [Path("/usr/bin"), Path("/usr/local/bin")]
    folders += map(Path, os.environ.get("PATH", "").split(os.pathsep))
    folders += sorted((pyenv / "versions").glob("3.*/bin"))
    found: dict[int, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("python3.*")):
            matched = re.fullmatch(r"python3\.(\d+)", path.name)
            if not matched or int(matched[1]) < OLDEST or int(matched[1]) in found:
                continue
            # A shim of pyenv ends with an error if no such version is active. A Python may lack
            # ensurepip, which Debian has in a package of its own.
            says = subprocess.run([path, "-c", "import ensurepip"], capture_output=True, timeout=60)
            if says.returncode == 0:
                found[int(matched[1])] = path
    return found


def minors() -> list[int]:
    return sorted({*range(OLDEST, NEWEST + 1), *(pythons() if FULL else ())})


@pytest.fixture
def environment(minor: int, tmp_path: Path) -> Path:
    """The folder of commands of an environment with the wheel."""
    python = pythons().get(minor)
    if python is None:
        pytest.skip(f"Python 3.{minor} is not on this machine")
    said(python, "-m", "venv", tmp_path / "venv")
    commands = tmp_path / "venv/bin"
    said(commands / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         newest("harp_nccl-*.whl"))  # fmt: skip
    return commands


def said(*args: str | Path) -> str:
    """What a command prints. HARP's variables and those of Python do not reach it, so it cannot
    find the checkout."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HARP_", "NCCL_", "PYTHON", "PYENV_VERSION", "VIRTUAL_ENV"))
    }
    done = subprocess.run(args, env=kept, cwd="/", capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(map(str, args))}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("minor", minors())
def test_wheel_works(environment: Path, minor: int) -> None:
    python = environment / "python"
    assert said(python, "-V").startswith(f"Python 3.{minor}.")
    version = said(environment / "harp", "--version")
    assert version.startswith("harp ") and "DPDK" in version
    assert said(environment / "harp", "env", "--defaults").startswith("device  [required]\n")
    site = said(python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('platlib'))")
    imported = int(said(python, "-I", IMPORT_ALL, site.strip()))
    assert imported > len(list(Path(site.strip(), "harp").rglob("*.abi3.so"))) > 0


def test_auditwheel_confirms_the_tag() -> None:
    auditwheel = Path(sys.executable).parent / "auditwheel"
    if not auditwheel.exists():
        pytest.skip("auditwheel is missing: ./tools/package wheel installs it")
    wheel = newest("harp_nccl-*.whl")
    tag = wheel.stem.rpartition("-")[2]
    assert tag.startswith("manylinux_") and "-cp39-abi3-" in wheel.name
    verdict = " ".join(said(auditwheel, "show", wheel).split())
    assert f'is consistent with the following platform tag: "{tag}"' in verdict
