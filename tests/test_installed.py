# SPDX-License-Identifier: Apache-2.0
"""What a wheel would hold: the build installed into a folder of its own. No module is forgotten,
and each of them works there without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("HARP_BUILD_DIR") or ROOT / "build")
IMPORT_ALL = str(ROOT / "tests/import_all.py")
# Every file of these is for users. Only a checkout has tools/ and tests/.
WHOLE = tuple(
    "harp/agent harp/check harp/cli harp/light harp/light/torch harp/observe harp/setup harp/torch "
    "harp".split()
)

RUN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from harp.cli.main import main; main()"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that stands for site-packages."""
    meson = shutil.which("meson")
    if meson is None:
        pytest.skip("meson is not on the PATH")
    place = tmp_path_factory.mktemp("installed")
    command = [meson, "install", "-C", str(BUILD), "--no-rebuild", "--quiet"]
    done = subprocess.run(
        [*command, "--destdir", str(place)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (package,) = (path.parent for path in place.rglob("harp/__init__.py"))
    return package.parent


def python(*args: str) -> subprocess.CompletedProcess[str]:
    """Isolated: neither the environment nor the current folder leads to the checkout."""
    return subprocess.run(
        [sys.executable, "-I", *args], capture_output=True, text=True, timeout=100
    )


def forgotten(installed: Path) -> list[str]:
    """Modules for users that a wheel would lack."""
    sources = (path for folder in WHOLE for path in sorted((ROOT / folder).glob("*.py")))
    names = (path.relative_to(ROOT) for path in sources)
    return [str(name) for name in names if not (installed / name).is_file()]


def test_no_module_is_missing(installed: Path) -> None:
    assert forgotten(installed) == []


def test_missing_module_is_detected(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(installed / "harp", tmp_path / "harp")
    (tmp_path / "harp/setup/bind.py").unlink()
    assert forgotten(tmp_path) == ["harp/setup/bind.py"]
    assert "No module named 'harp.setup.bind'" in python(IMPORT_ALL, str(tmp_path)).stderr


def test_every_module_imports_without_checkout(installed: Path) -> None:
    done = python(IMPORT_ALL, str(installed))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "args",
    ["setup --help", "setup nics", "doctor --help", "perf --help", "agent file harp-agent.service"],
)
def test_commands_run_without_checkout(installed: Path, args: str) -> None:
    done = python("-c", RUN, str(installed), *args.split())
    assert done.returncode == 0, done.stderr
