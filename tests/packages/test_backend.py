# SPDX-License-Identifier: Apache-2.0
"""The build backend: it names all that the host lacks, and a wheel says what it holds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mesonpy")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/packages"))

import backend  # noqa: E402
import build_needs  # noqa: E402

FULL = os.environ.get("HARP_TEST_FULL")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A host without a program, and without a header of Python."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))


def test_this_host_lacks_nothing() -> None:
    assert list(build_needs.missing()) == []


def test_all_missing_programs_are_named_at_once(
    bare: None, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        backend.get_requires_for_build_wheel()
    assert ended.value.code == 1
    said = capfd.readouterr().err
    assert "apt-get install gcc pkg-config python3-dev clang\n" in said
    assert "setup-args=-Dxdp=disabled" in said


@pytest.mark.parametrize("command", ["package", "arm64"])
def test_missing_cross_compiler_is_named_before_the_build(command: str, tmp_path: Path) -> None:
    """The copy of the checkout has no tools/prepare: it cannot build."""
    shutil.copytree(ROOT / "tools/packages", tmp_path / "tools/packages")
    shutil.copy(ROOT / "tools" / command, tmp_path / "tools")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dirname").symlink_to(str(shutil.which("dirname")))
    done = subprocess.run(
        [tmp_path / "tools" / command, *(["wheel-arm64"] if command == "package" else [])],
        env={"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.endswith("apt-get install gcc-aarch64-linux-gnu qemu-user-static\n")


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PKG_CONFIG_LIBDIR", str(tmp_path))
    packages = [package for _, package in build_needs.missing()]
    assert packages == ["libsodium-dev", "libdpdk-dev"]
    assert [package for _, package in build_needs.missing(dpdk=False)] == ["libsodium-dev"]


def test_parts_are_enabled_unless_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARP_LOCAL_VERSION", "")
    prepared: Any = backend._prepared({"setup-args": "-Dxdp=disabled"})
    assert prepared["setup-args"] == ["-Dxdp=disabled", "-Ddpdk=enabled"]
    assert os.environ["HARP_LOCAL_VERSION"] == ""
    backend._prepared({"setup-args": ["-Ddpdk=disabled"]})
    assert os.environ["HARP_LOCAL_VERSION"] == "+nodpdk"


def test_one_setting_may_hold_several_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip before 23.1, as in Debian 12, passes the last setup-args alone."""
    monkeypatch.setenv("HARP_LOCAL_VERSION", "")
    prepared: Any = backend._prepared({"setup-args": "-Ddpdk=disabled '-Dcommit=a b'"})
    assert prepared["setup-args"] == ["-Ddpdk=disabled", "-Dcommit=a b", "-Dxdp=enabled"]
    assert os.environ["HARP_LOCAL_VERSION"] == "+nodpdk"


@pytest.mark.parametrize(
    "words", [["--cross-file={file}"], ["-Dxdp=auto", "--cross-file", "{file}"]]
)
def test_cross_file_names_other_machine(
    words: list[str], bare: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this host lacks does not matter then, and DPDK is not left out."""
    for name in ("HARP_LOCAL_VERSION", "_PYTHON_HOST_PLATFORM"):
        monkeypatch.setenv(name, "")
    file = ROOT / "tools/packages/aarch64.ini"
    prepared: Any = backend._prepared({"setup-args": [word.format(file=file) for word in words]})
    assert os.environ["_PYTHON_HOST_PLATFORM"] == "linux-aarch64"
    assert "-Ddpdk=enabled" in prepared["setup-args"]
    assert backend._other_machine(["-Ddpdk=enabled"]) is None


def test_pytest_plugin_of_test_kit_is_opt_in() -> None:
    """An entry point would load it into every pytest of an environment with the wheel."""
    assert "pytest11" not in (ROOT / "pyproject.toml").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="builds a wheel, in a minute; HARP_TEST_FULL=1")
@pytest.mark.timeout(900)
def test_wheel_without_dpdk_says_so_in_its_name(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path,
         "--config-settings=setup-args=-Ddpdk=disabled", ROOT], check=True)  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("harp_nccl-0.1.0+nodpdk-cp39-abi3-")
    zipfile.ZipFile(wheel).extractall(tmp_path / "there")
    said = subprocess.run(
        [sys.executable, "-c", "from harp.cli.main import main; main(['--version'])"],
        cwd=tmp_path / "there", env={"PYTHONPATH": "."}, capture_output=True, text=True,
        timeout=60, check=True)  # fmt: skip
    assert said.stdout.splitlines()[0] == "harp 0.1.0+nodpdk"
    assert "DPDK none" in said.stdout
