# SPDX-License-Identifier: Apache-2.0
"""The files behind ./tools/package: units, maintainer scripts, man pages. Nothing is built."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest

from harp.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "tools/packages"
UNIT = (PACKAGES / "systemd/harp-setup.service").read_text()
COMMAND = re.compile(r"\bharp ([a-z]+)(?: ([a-z]+))?\b")


def command_problems(text: str) -> list[str]:
    """Commands of harp in a script or unit that do not exist."""
    found = []
    for name, word in COMMAND.findall(text):
        context = click.Context(cli.harp)
        command = cli.harp.get_command(context, name)
        if command is None:
            found.append(f"harp {name}")
        elif isinstance(command, click.Group) and not command.get_command(context, word):
            found.append(f"harp {name} {word}")
    return found


def run_lines(text: str) -> str:
    """The lines of a unit or a script that run something."""
    return "\n".join(line for line in text.splitlines() if re.match(r"ExecStart=|\s+harp ", line))


@pytest.mark.parametrize(
    "name",
    [
        "systemd/harp-setup.service",
        "debian/harp-nccl.prerm",
        "harp.spec",
    ],
)
def test_packages_run_commands_that_exist(name: str) -> None:
    lines = run_lines((PACKAGES / name).read_text())
    assert lines and not command_problems(lines)


def test_command_that_is_not_there_is_detected() -> None:
    assert command_problems("ExecStart=/usr/bin/harp setup again") == ["harp setup again"]
    assert command_problems("ExecStart=/usr/bin/harp prepare") == ["harp prepare"]


def test_unit_runs_only_after_set_up() -> None:
    from harp.setup.journal import NAME

    assert f"ConditionPathExists=/usr/local/tfabric/tools/config/{NAME}\n" in UNIT


@pytest.mark.parametrize("script", [
    "man", "deb", "rpm", "container", "debian/harp-nccl.prerm", "debian/harp-nccl.postrm",
    "../arm64", "../package",
])  # fmt: skip
def test_script_has_no_error_of_syntax(script: str) -> None:
    path = PACKAGES / script
    shell = path.read_text().splitlines()[0].removeprefix("#!")
    subprocess.run([shell, "-n", path], check=True)


def test_release_of_package_is_that_of_wheel() -> None:
    """The packages read it from the name of the wheel."""
    script = f". {PACKAGES}/common; release"
    for name, wanted in (("0.1.0", "0.1.0"), ("0.2.0+nodpdk", "0.2.0+nodpdk")):
        said = subprocess.run(
            ["bash", "-c", f"basename() {{ echo harp_nccl-{name}-cp39-abi3-x.whl; }}; {script}"],
            capture_output=True, text=True, check=True)  # fmt: skip
        assert said.stdout.strip() == wanted
