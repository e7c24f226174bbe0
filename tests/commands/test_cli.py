# SPDX-License-Identifier: Apache-2.0
"""Every command has help, an exit status, and an error line for a misspelled name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harp import _tables
from harp.api_versions import APIS

ROOT = Path(__file__).resolve().parents[2]

COMMANDS = (
    "build",
    "setup",
    "doctor",
    "env",
    "enable",
    "disable",
    "perf",
    "stat",
    "top",
    "capture",
    "trace",
)


def test_help_lists_all_commands(harp: Any) -> None:
    listed = harp("--help").stdout
    for command in (*COMMANDS, "nc"):
        assert f"\n  {command} " in listed
    assert harp("-h").stdout == listed
    assert harp("--version").stdout.startswith("harp ")


def test_version_names_commit_and_parts(harp: Any) -> None:
    facts = _tables.build_facts()
    lines = dict(line.split(" ", 1) for line in harp("--version").stdout.splitlines())
    assert list(lines) == ["harp", "commit", "DPDK", "checksums", "devices"]
    assert lines["harp"] == _tables.version() and lines["commit"] == facts["commit"]
    assert {"packet", "wire", "fault"} <= set(lines["devices"].split())
    assert ("dpdk" in lines["devices"].split()) == (not lines["DPDK"].startswith("none"))
    assert (facts["sums"] == "avx512") == (lines["checksums"] == "by AVX-512")


def test_commit_is_one_of_the_clone() -> None:
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True).returncode:
        pytest.skip("this is no clone")
    commit = str(_tables.build_facts()["commit"]).partition("-")[0]
    assert len(commit) >= 12
    subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], check=True)


@pytest.mark.parametrize("args", [["stat"], ["env", "--defaults"], ["--help"]])
def test_full_disk_behind_the_output_is_an_error(folders: Path, args: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "harp", *args], stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert (done.returncode, done.stderr) == (1, b"Error: No space left on device\n")


@pytest.mark.parametrize("args", [["env"], ["env", "--devices"], ["doctor"], ["setup", "status"]])
def test_folder_whose_name_is_no_text_is_used(
    folders: Path, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    folder = os.fsencode(folders) + b"/\xff"
    os.mkdir(folder)
    Path(os.fsdecode(folder), "ztcp0.conf").write_text("device = packet:absent0\n")
    monkeypatch.setenv("HARP_CONF_DIR", os.fsdecode(folder))
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")
    done = subprocess.run([sys.executable, "-m", "harp", *args], capture_output=True, timeout=60)
    assert done.returncode in (0, 1) and b"Traceback" not in done.stderr, done.stderr
    assert b"HARP_CONF_DIR = " + folder in done.stdout or args != ["env"]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, harp: Any) -> None:
    assert harp(command, "--help").stdout.startswith(f"Usage: harp {command} ")
    assert harp(command, "-h").stdout == harp(command, "--help").stdout


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("command", [*COMMANDS, "--colour"])
def test_wrong_usage_exits_2(command: str, harp: Any) -> None:
    assert "Usage: harp" in harp(command, "--no-such-option", code=2).stderr
    assert "Usage: harp" in harp("no-such-command", code=2).stderr


def test_missing_compiled_module_names_harp_build(
    harp: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HARP_BUILD_DIR", str(tmp_path))
    assert "build it with: harp build" in harp("doctor", code=1).stderr
    assert "build" in harp("--help").stdout


def test_versions_are_those_of_the_measuring_programs() -> None:
    header = (ROOT / "harp/bench/netapi.h").read_text()
    assert f"NETAPI_FIRST = {APIS[0]}, NETAPI_LAST = {APIS[-1]}," in header


@pytest.mark.parametrize(
    "device, code, said",
    [
        ("xdp:none0", 1, "none0"),
        (
            "wire:/nowhere",
            2,
            "only packet and xdp devices share the kernel's address: give --address",
        ),
    ],
)
def test_netcat_shares_address_of_packet_and_xdp_devices(
    device: str, code: int, said: str, harp: Any
) -> None:
    told = harp("nc", "--device", device, "10.0.0.1", "9", code=code).stderr
    assert said in told and ("--address" in told) == device.startswith("wire"), told


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("entry", ["setup_main", "run_main"])
def test_other_entry_points_have_help(entry: str, option: str, harp: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"from harp.cli.main import {entry}; {entry}()", option],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("Usage: harp")
    assert done.returncode == 0
